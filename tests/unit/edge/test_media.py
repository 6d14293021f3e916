"""When a prompt with media is bounded, by what, and who is asked for the rest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from gateway.core.media import AROUND, Fixed, Kind, Rules
from gateway.edge.counting import Threads
from gateway.edge.media import LOOKED_AT, OVER_BOUND, MediaMeasurer
from gateway.edge.metrics import Metrics
from gateway.rendering.media import STAND_IN
from gateway.types import (
    AtLeast,
    Bounded,
    ChatPrompt,
    Counted,
    ParsedRequest,
    Prompt,
    PromptLength,
    TextPrompt,
    Unverifiable,
)

INLINE = 2**14
RULES = Rules({Kind.IMAGE: Fixed(100 - AROUND)})  # 100 with what is around it
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
TEXT = {"type": "text", "text": "What is this?"}


class Inner:
    """A measurer with one answer, which remembers what it was asked."""

    def __init__(self, answer: PromptLength) -> None:
        self.answer = answer
        self.asked: list[tuple[Prompt, int | None]] = []

    async def measure(self, request: ParsedRequest, limit: int | None, tenant: str) -> PromptLength:
        self.asked.append((request.prompt, limit))
        return self.answer

    async def exact(self, request: ParsedRequest, tenant: str) -> PromptLength:
        return Unverifiable("image")


def request(*parts: Any, padding: str = "", **body: Any) -> ParsedRequest:
    body = {"messages": [{"role": "user", "content": list(parts)}], "user": padding, **body}
    return asked(ChatPrompt("openai_chat", body), body)


def asked(prompt: Prompt, body: dict[str, Any]) -> ParsedRequest:
    raw = msgspec.json.encode(body)
    return ParsedRequest("openai_chat", "/v1/chat/completions", raw, body, "m", False, prompt)


@contextmanager
def measuring(answer: PromptLength, rules: Rules = RULES):
    metrics = Metrics()
    with ThreadPoolExecutor(1) as executor:
        inner = Inner(answer)
        threads = Threads(executor, executor, INLINE, metrics)
        yield MediaMeasurer(inner, rules, threads), inner, metrics


def hops(metrics: Metrics) -> float:
    """Runs on a thread so far."""
    return metrics.registry.get_sample_value("poolgate_count_seconds_count", {"how": "thread"})


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        (Counted((50,)), 150, Bounded(150, 150)),
        (Counted((51,)), 150, Unverifiable(OVER_BOUND)),
        (Bounded(50, 50), 150, Bounded(150, 150)),
        (AtLeast(60), 150, Unverifiable(OVER_BOUND)),
        (Counted((50,)), None, Bounded(150, 150)),
        (Unverifiable("busy", transient=True), 150, Unverifiable("busy", transient=True)),
    ],
)
async def test_text_and_media_make_a_bound(
    text: PromptLength, limit: int | None, expected: PromptLength
) -> None:
    with measuring(text) as (measurer, inner, _):
        assert await measurer.measure(request(TEXT, IMAGE), limit, "t") == expected
    [(prompt, room)] = inner.asked
    assert room == (None if limit is None else limit - 100)
    assert isinstance(prompt, ChatPrompt)
    assert prompt.body["messages"][0]["content"] == [TEXT, {"type": "text", "text": STAND_IN}]


async def test_media_over_the_limit_alone_needs_no_count() -> None:
    with measuring(Counted((0,))) as (measurer, inner, _):
        assert await measurer.measure(request(IMAGE), 99, "t") == Unverifiable(OVER_BOUND)
        assert inner.asked == []
        assert await measurer.measure(request(IMAGE), 100, "t") == Bounded(100, 100)


@pytest.mark.parametrize(
    "sent",
    [
        request(TEXT),
        request(TEXT, IMAGE, mm_processor_kwargs={"max_pixels": 9}),
        request(IMAGE, {"type": "video_url", "video_url": {"url": "https://example.com/v"}}),
        asked(TextPrompt(("image_url",)), {"prompt": "image_url"}),
    ],
)
async def test_what_has_no_media_or_no_bound_is_measured_as_it_is(sent: ParsedRequest) -> None:
    with measuring(Unverifiable("image")) as (measurer, inner, _):
        assert await measurer.measure(sent, 150, "t") == Unverifiable("image")
    assert inner.asked == [(sent.prompt, 150)]


async def test_there_is_no_exact_count() -> None:
    with measuring(Counted((1,))) as (measurer, _, _):
        assert await measurer.exact(request(IMAGE), "t") == Unverifiable("image")


async def test_a_large_text_without_media_stays_on_the_loop() -> None:
    with measuring(Counted((50,))) as (measurer, _, metrics):
        await measurer.measure(request(TEXT, padding="x" * INLINE), 150, "t")
        assert hops(metrics) == 0
        large = request(TEXT, IMAGE, padding="x" * INLINE)
        assert await measurer.measure(large, 150, "t") == Bounded(150, 150)
        assert hops(metrics) == 1


async def test_a_chat_of_very_many_parts_is_looked_at_on_a_thread() -> None:
    with measuring(Counted((50,))) as (measurer, _, metrics):
        parts = [{"type": "text", "text": ""}] * LOOKED_AT
        assert await measurer.measure(request(*parts), 150, "t") == Counted((50,))
        assert hops(metrics) == 1
