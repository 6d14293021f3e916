"""llama.cpp's counts, as a live server (build 11434, Qwen3's tokenizer and template) gave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assets_at_hand import TINY, counter, encoder
from gateway.tokens.selftest import TEXTS
from gateway.types import ChatPrompt, Counted, TextPrompt, Unverifiable

DATA = Path(__file__).parents[2] / "data" / "rendering"
RECORDED = json.loads((DATA / "llama_cpp.json").read_text("utf-8"))
CASES = json.loads((DATA / "cases.json").read_text("utf-8"))
CHATS = [case for case in CASES if case["dialect"] == "openai_chat"]


@pytest.mark.assets
@pytest.mark.parametrize("case", CHATS, ids=lambda case: str(case["name"]))
def test_chat_counts_as_the_server_does(case: dict[str, Any]) -> None:
    answer = counter("qwen3", "llama_cpp").count(ChatPrompt("openai_chat", case["body"]))
    recorded = RECORDED["chats"][case["name"]]
    if isinstance(answer, Counted):
        assert recorded in (answer.total, None)
    else:
        assert isinstance(answer, Unverifiable)


@pytest.mark.assets
def test_enough_chats_are_counted() -> None:
    one = counter("qwen3", "llama_cpp")
    answers = [one.count(ChatPrompt("openai_chat", case["body"])) for case in CHATS]
    assert sum(isinstance(answer, Counted) for answer in answers) >= 30


@pytest.mark.assets
def test_texts_count_as_the_server_does() -> None:
    """No normaliser, and the plain entry ``</s>`` is a control token there."""
    one = counter("qwen3", "llama_cpp")
    counts = [one.count(TextPrompt((text,))) for text in TEXTS]
    assert counts == [Counted((length,)) for length in RECORDED["texts"]]
    assert encoder("qwen3", normalise=False).count("</s>") == 1
    assert encoder("qwen3").count("</s>") > 1


@pytest.mark.parametrize(
    "more",
    [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"reasoning_effort": "low"},
     {"continue_final_message": True}, {"chat_template_kwargs": {"bos_token": "x"}}],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_what_its_handlers_rewrite_is_opaque(more: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "q"}], **more}
    answer = counter(TINY, "llama_cpp").count(ChatPrompt("openai_chat", body))
    assert isinstance(answer, Unverifiable)


def test_final_assistant_message_is_opaque() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "begun"}]
    answer = counter(TINY, "llama_cpp").count(ChatPrompt("openai_chat", {"messages": messages}))
    assert answer == Unverifiable("engine_rendering")
