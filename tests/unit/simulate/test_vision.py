"""What images cost the simulated engine."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from gateway.simulate import Vision
from gateway.simulate.chats import from_anthropic
from gateway.simulate.engine import EngineRefusal
from gateway.simulate.settings import bundled_tokenizer
from gateway.simulate.tokeniser import Chat, Tokeniser


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR" + struct.pack(">II", width, height)
    return base64.b64encode(head + bytes(9)).decode()


def image(width: int, height: int) -> dict[str, Any]:
    url = f"data:image/png;base64,{png(width, height)}"
    return {"type": "image_url", "image_url": {"url": url}}


def asking(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((280, 560), 200), ((560, 280), 200), ((1, 1), 4), ((4000, 3000), 1230), ((14, 28), 6)],
)
def test_an_image_costs_its_cells(size: tuple[int, int], tokens: int) -> None:
    assert Vision().tokens(asking(image(*size), {"type": "text", "text": "?"})) == tokens


def test_a_remote_image_has_the_size_that_is_set() -> None:
    remote = {"type": "input_image", "image_url": "https://example.com/a.png"}
    assert Vision(remote=(280, 560)).tokens(asking(remote, remote)) == 400
    assert Vision().tokens([{"role": "user", "content": "text"}]) == 0


@pytest.mark.parametrize(
    "part", [image(1, 201), {"type": "image_url", "image_url": {"url": "data:image/png,x"}}]
)
def test_what_cannot_be_seen_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(EngineRefusal):
        Tokeniser(bundled_tokenizer(), vision=Vision()).encode_chat(Chat(asking(part)))


def test_an_anthropic_image_costs_the_same() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": png(280, 560)}
    body = {"messages": asking({"type": "image", "source": source})}
    chat = from_anthropic(body, inline_system=True)
    blind, seeing = (Tokeniser(bundled_tokenizer(), vision=v) for v in (None, Vision()))
    assert len(seeing.encode_chat(chat)) == len(blind.encode_chat(chat)) + 200
