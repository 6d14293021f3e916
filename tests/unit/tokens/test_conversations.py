"""Growing conversations under many models' templates: remembered counts are the whole counts.

The oracle is HF tokenizers on the whole rendered text, at every turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from assets_at_hand import EVERY_HF_TOKENIZER, TINY, encoder, template, whole_count
from gateway.tokens.encoder import Means
from gateway.tokens.recall import CountCache
from gateway.tokens.template import ChatTemplate, TemplateRefused
from gateway.types import TemplateCall

TEMPLATES = sorted((Path(__file__).parents[2] / "data" / "templates").glob("*.jinja"))
TURNS = 30
WITH_TEMPLATES = [
    TINY,
    *(pytest.param(name, marks=pytest.mark.assets) for name in ("qwen3", "deepseek_v3")),
]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds <a> & 'b' in \"c\", 中文 too",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
SAID = (
    "def f(x):\n    return {'a': [1, 2.5e-3]}\n\n\n# end\n\tpass\n" * 4,
    "The quick brown fox jumps over the lazy dog, and nobody minds. " * 6,
    "中文没有空格,混合English和数字12345。日本語です。" * 9,
    "what do <|im_end|> and <｜User｜> and <think>\n</think> mean? <|im_end",
    "e\u0301 \U0001d1c0 <think>\u0338 </think>\u0301 😀",
    " \n\n  spaces around \t\n",
    "QUJDRA" * 60,
    "ok",
)  # fmt: skip


def turn(index: int) -> list[dict[str, Any]]:
    question, answer = SAID[index % 8], SAID[(index * 3 + 1) % 8]
    return [
        {"role": "user", "content": f"{index}: {question}"},
        {"role": "assistant", "content": answer, "reasoning_content": f"thought {index}"},
    ]


def tool_turn(index: int) -> list[dict[str, Any]]:
    call = {"name": "look_up", "arguments": {"query": SAID[index % 8]}}
    called = [{"id": f"call{index:05}", "type": "function", "function": call}]
    return [
        {"role": "user", "content": f"{index}: look"},
        {"role": "assistant", "content": "", "tool_calls": called},
        {"role": "tool", "tool_call_id": f"call{index:05}", "content": SAID[(index + 2) % 8]},
        {"role": "assistant", "content": f"found {index}"},
    ]


def variants(index: int) -> Iterator[tuple[str, TemplateCall]]:
    """What may be asked at a turn. Templates refuse some of them."""
    asked = [{"role": "user", "content": "and now?"}]
    start = [{"role": "system", "content": SAID[1] * 3}]
    past = [message for before in range(index) for message in turn(before)]
    with_tools = [message for before in range(index) for message in tool_turn(before)]
    new = {"add_generation_prompt": True}
    yield "plain", TemplateCall(past + asked, **new)
    yield "system", TemplateCall(start + past + asked, **new)
    rest: list[tuple[str, TemplateCall]] = [
        ("tools", TemplateCall(start + with_tools + asked, tools=[TOOL], **new)),
        ("thinking", TemplateCall(past + asked, kwargs={"enable_thinking": True}, **new)),
        ("no thinking", TemplateCall(past + asked, kwargs={"enable_thinking": False}, **new)),
        (
            "late system",
            TemplateCall([*past, {"role": "system", "content": "be brief"}, *asked], **new),
        ),
        (
            "continued",
            TemplateCall(
                [*past, *asked, {"role": "assistant", "content": "I was say"}],
                continue_final_message=True,
                add_generation_prompt=False,
            ),
        ),
    ]
    yield rest[index % len(rest)]


@cache
def rendered(path: Path | str) -> list[tuple[str, str]]:
    """Every variant of every turn that the template takes: one of a file, or a tokenizer's own."""
    chat = template(path) if isinstance(path, str) else template(override=path)
    return [pair for index in range(TURNS) for pair in _taken(chat, index)]


def _taken(chat: ChatTemplate, index: int) -> Iterator[tuple[str, str]]:
    for name, call in variants(index):
        try:
            yield name, chat.render(call)
        except TemplateRefused:
            continue


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_every_turn_is_rendered_as_transformers_does(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours go a shorter way; the oracle is transformers' renderer, its templates compiled anew."""
    ours = rendered(path)
    untouched = cache(chat_template_utils._cached_compile_jinja_template)
    monkeypatch.setattr(chat_template_utils, "_compile_jinja_template", untouched)
    short = template(override=path)
    assert short.shortcuts
    chat = replace(short, shortcuts={})
    assert "getattr" not in vars(untouched(chat.templates.default.source).environment)
    theirs = [pair for index in range(TURNS) for pair in _taken(chat, index)]
    assert ours == theirs


@pytest.mark.parametrize("tokenizer", EVERY_HF_TOKENIZER)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_every_turn_counts_as_a_whole(path: Path, tokenizer: str) -> None:
    check_turns(rendered(path), tokenizer)


@pytest.mark.parametrize("name", WITH_TEMPLATES)
def test_every_turn_of_a_tokenizers_own_template_counts_as_a_whole(name: str) -> None:
    check_turns(rendered(name), name)


def check_turns(texts: list[tuple[str, str]], tokenizer: str) -> None:
    remembered = CountCache(2**22, b"secret")
    one, hits = encoder(tokenizer), 0
    assert len(texts) >= 2 * TURNS - 2
    for _, text in texts:
        recall = remembered.of_tenant("a")
        assert recall is not None
        assert one.count(text, means=Means(recall)) == whole_count(tokenizer, text)
        hits += recall.hits
    assert hits > 0


def test_the_templates_are_many_and_take_every_variant() -> None:
    assert len(TEMPLATES) >= 12
    taken = {name for path in TEMPLATES for name, _ in rendered(path)}
    assert taken == {name for index in range(TURNS) for name, _ in variants(index)}
    assert len(taken) == 7


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "vllm-chatml"])
def test_a_turn_costs_its_new_text(name: str) -> None:
    """Also where a template renders the last answer otherwise than those before it."""
    [path] = [path for path in TEMPLATES if path.stem == name]
    remembered, counted = CountCache(2**22, b"secret"), []
    one = encoder(TINY)
    for text in [text for variant, text in rendered(path) if variant == "system"]:
        recall = remembered.of_tenant("a")
        assert recall is not None
        one.count(text, means=Means(recall))
        counted.append(recall.misses)
    assert len(counted) == TURNS
    assert max(counted[1:]) <= 6
