"""A prompt's bound with media is never below what the engine makes of it.

The engine's side is written down here once more: how vLLM 0.32.0 and SGLang 0.5.23 hand a chat with
images to a template that takes parts and to one that takes strings, and that each placeholder then
becomes an image's tokens. The tokenizer has Qwen's marks (qwen3), or takes them for plain text
(poolgate-tiny), as a wrong placeholder would be.
"""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from assets_at_hand import TINY, encoder, template, whole_count
from gateway.core.image_header import Size
from gateway.core.media import AROUND, Kind, QwenVl, Rules, bound
from gateway.rendering.media import STAND_IN, take_media
from gateway.rendering.registry import engine_rendering
from gateway.tokens.counter import PromptCounter
from gateway.types import ChatPrompt, Counted, TemplateCall

VISION = Path(__file__).parents[1] / "data/templates/vision.jinja"
TOKENIZERS = [TINY, pytest.param("qwen3", marks=pytest.mark.assets)]
RELAXED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
RULE = QwenVl(28, 56 * 56, 28 * 28 * 1280)
RULES = Rules({Kind.IMAGE: RULE})
PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"

# Texts that merge with what they are put next to, and some that look like marks.
PIECES = st.sampled_from(
    ["a", "zz", "Hel", "lo", "é", "\u0301", "中", "1", "23", " ", "    ", "\n", "\n\n", "\r\n",
     "\t", ".", "...", "'s", "[", "]", "media", "[media]", "😀", "\u200d", "<|im_end|>", "<|", "|>"]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(PIECES, max_size=20).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)
SIZES = st.tuples(st.integers(1, 4000), st.integers(1, 4000)).filter(
    lambda size: max(size) <= 200 * min(size)
)
CONTENTS = st.one_of(TEXTS, st.lists(st.one_of(TEXTS, SIZES), min_size=1, max_size=6))
TURNS = st.lists(CONTENTS, min_size=1, max_size=4)

Content = str | list[str | tuple[int, int]]


def inline(size: tuple[int, int]) -> str:
    """A PNG's header with this size, and no pixel."""
    ihdr = b"\0\0\0\x0dIHDR" + struct.pack(">II", *size) + b"\x08\x02\0\0\0crc "
    png = b"\x89PNG\r\n\x1a\n" + ihdr + b"\0\0\0\0IDAT"
    return "data:image/png;base64," + base64.b64encode(png).decode()


def request(turns: list[Content]) -> ChatPrompt:
    messages = []
    for turn, content in enumerate(turns):
        user = turn % 2 == 0
        messages.append({"role": "user" if user else "tool", "content": _parts(content)})
    return ChatPrompt("openai_chat", {"messages": messages})


def _parts(content: Content) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": item}
        if isinstance(item, str)
        else {"type": "image_url", "image_url": {"url": inline(item)}}
        for item in content
    ]


def images(turns: list[Content]) -> list[tuple[int, int]]:
    return [
        item for content in turns if not isinstance(content, str)
        for item in content if not isinstance(item, str)
    ]  # fmt: skip


def as_parts(content: Content) -> list[dict[str, str]]:
    items = [content] if isinstance(content, str) else content
    return [
        {"type": "text", "text": item} if isinstance(item, str) else {"type": "image"}
        for item in items
    ]


def vllm_parts(turns: list[Content]) -> list[Any]:
    """Content as parts; a tool's is one string where it is all text."""
    contents: list[Any] = [as_parts(content) for content in turns]
    for turn, parts in enumerate(contents):
        if turn % 2 and all(part["type"] == "text" for part in parts):
            contents[turn] = "\n".join(part["text"] for part in parts)
    return contents


def vllm_strings(turns: list[Content]) -> list[str]:
    """Each message's placeholders first, then its texts, a line each."""
    lines = [
        [content] if isinstance(content, str) else
        [PLACEHOLDER for item in content if not isinstance(item, str)]
        + [item for item in content if isinstance(item, str) and item]
        for content in turns
    ]  # fmt: skip
    return ["\n".join(each) for each in lines]


def sglang_parts(turns: list[Content]) -> list[Any]:
    contents: list[Any] = []
    for turn, content in enumerate(turns):
        parts = content if isinstance(content, str) else as_parts(content)
        flat = turn % 2 and not isinstance(parts, str)
        if flat and all(part["type"] == "text" for part in parts):
            parts = " ".join(part["text"] for part in parts)
        contents.append(parts)
    return contents


def sglang_strings(turns: list[Content]) -> list[str]:
    """Images vanish from the text."""
    return [
        content
        if isinstance(content, str)
        else " ".join(item for item in content if isinstance(item, str))
        for content in turns
    ]


def engines_count(name: str, contents: list[Any], override: Path | None, extra: int) -> int:
    """Tokens of the template's text, and of what the placeholders grow to."""
    roles = ["user" if turn % 2 == 0 else "tool" for turn in range(len(contents))]
    messages = [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=True)
    ]
    text = template(name, override).render(TemplateCall(messages))
    return whole_count(name, text) + extra


def our_bound(name: str, engine: str, turns: list[Content], override: Path | None) -> int:
    taken = take_media(request(turns))
    media = 0
    prompt = request(turns)
    if taken is not None:
        assert taken.parts is not None
        prompt = taken.prompt
        known = bound(taken.parts, RULES)
        assert known is not None
        media = known
    counter = PromptCounter(encoder(name), template(name, override), engine_rendering(engine))
    text = counter.count(prompt)
    assert isinstance(text, Counted)
    return text.longest + media


def image_tokens(turns: list[Content]) -> int:
    return sum(RULE.bound(Size(*size)) or 0 for size in images(turns))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@RELAXED
@given(turns=TURNS)
@example(turns=[[(1, 1)]])
@example(turns=[["Hel", (300, 20), "lo"], ["   ", (20, 4000), "\n\n"]])
def test_a_template_of_parts(name: str, engine: str, turns: list[Content]) -> None:
    contents = vllm_parts(turns) if engine == "vllm" else sglang_parts(turns)
    theirs = engines_count(name, contents, VISION, image_tokens(turns))  # a pad stays: one over
    ours = our_bound(name, engine, turns, VISION)
    assert theirs <= ours
    assert ours == theirs + len(images(turns)) * AROUND  # the text is the very same: no guess in it


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@RELAXED
@given(turns=TURNS)
@example(turns=[[(1, 1)]])
@example(turns=[["...", (300, 20), "..."], ["    ", (20, 4000), "    "]])
def test_a_template_of_strings(name: str, engine: str, turns: list[Content]) -> None:
    contents = vllm_strings(turns) if engine == "vllm" else sglang_strings(turns)
    theirs = engines_count(name, contents, None, image_tokens(turns))
    assert theirs <= our_bound(name, engine, turns, None)


@pytest.mark.parametrize("name", TOKENIZERS)
@RELAXED
@given(content=CONTENTS)
@example(content=["Hel", (300, 20), "lo"])
@example(content=["   ", (20, 4000), "\n\n"])
def test_an_engine_that_is_asked_with_the_text_in_place(name: str, content: Content) -> None:
    """Of a user's parts; about a tool's it is not asked."""
    theirs = engines_count(name, [as_parts(content)], VISION, image_tokens([content]))
    asked = content if isinstance(content, str) else [_as_asked(item) for item in content]
    text = engines_count(name, [as_parts(asked)], VISION, 0)
    assert theirs <= text + image_tokens([content]) + len(images([content])) * AROUND


def _as_asked(item: str | tuple[int, int]) -> str | tuple[int, int]:
    return item if isinstance(item, str) else STAND_IN
