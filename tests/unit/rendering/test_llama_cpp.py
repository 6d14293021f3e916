"""llama.cpp's counts, as a live server (build 11434, Qwen3's tokenizer and template) gave them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from assets_at_hand import TINY, counter, encoder
from gateway.rendering import llama_cpp
from gateway.rendering.common import Templates, TemplateTraits
from gateway.tokens.selftest import TEXTS
from gateway.types import (
    ChatPrompt,
    Counted,
    OpaquePrompt,
    TemplateCall,
    TextPrompt,
    Unverifiable,
)

DATA = Path(__file__).parents[2] / "data" / "rendering"
RECORDED = json.loads((DATA / "llama_cpp.json").read_text("utf-8"))
CASES = json.loads((DATA / "cases.json").read_text("utf-8"))


@pytest.mark.assets
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['dialect']}/{case['name']}")
def test_chat_counts_as_the_server_does(case: dict[str, Any]) -> None:
    answer = counter("qwen3", "llama_cpp").count(ChatPrompt(case["dialect"], case["body"]))
    recorded = RECORDED[case["dialect"]][case["name"]]
    if isinstance(answer, Counted):
        assert recorded in (answer.total, None)
    else:
        assert isinstance(answer, Unverifiable)


@pytest.mark.assets
def test_enough_chats_are_counted() -> None:
    one = counter("qwen3", "llama_cpp")
    accepted = [case for case in CASES if RECORDED[case["dialect"]][case["name"]] is not None]
    answers = [one.count(ChatPrompt(case["dialect"], case["body"])) for case in accepted]
    assert sum(isinstance(answer, Counted) for answer in answers) >= 0.9 * len(answers)


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
    [{"tools": [{"type": "function", "function": {"name": "f"}}]},
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


def rendered(body: dict[str, Any], source: str = "") -> TemplateCall | OpaquePrompt:
    template = source or f"system arguments | tojson {llama_cpp.THINK_BLOCK}"
    prompt = ChatPrompt("openai_chat", {"messages": [{"role": "user", "content": "q"}], **body})
    before = copy.deepcopy(prompt.body)
    call = llama_cpp.render(prompt, Templates(TemplateTraits(template)))
    assert prompt.body == before
    return call


TOOLS = [{"type": "function", "function": {"parameters": {"maximum": 1.0}, "name": "f", "x": 1}}]


def test_tools_hold_three_members_in_one_order() -> None:
    call = rendered({"tools": TOOLS})
    assert isinstance(call, TemplateCall)
    shown = '{"type": "function", "function": {"name": "f", "description": "", "parameters": '
    assert json.dumps(call.tools) == "[" + shown + '{"maximum": 1}}}]'


@pytest.mark.parametrize("marks", llama_cpp.SPECIALISED)
def test_templates_with_a_handler_of_their_own_are_opaque(marks: tuple[str, ...]) -> None:
    plain = f"system {llama_cpp.OBJECT_ARGUMENTS}"
    assert isinstance(rendered({"tools": TOOLS}, plain), TemplateCall)
    special = rendered({"tools": TOOLS}, " ".join((plain, *marks)))
    assert special == OpaquePrompt("engine_rendering")
    assert isinstance(rendered({}, " ".join((plain, *marks))), TemplateCall)


def test_a_template_that_asks_the_clock_is_opaque() -> None:
    assert rendered({}, "{{ date_string }}") == OpaquePrompt("server_clock")


@pytest.mark.parametrize(
    ("last", "tail"),
    [
        ({"content": "So"}, "<think>\n\n</think>\n\nSo"),
        ({"content": "So", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\nSo"),
        ({"content": "", "reasoning_content": "hm"}, "<think>\nhm"),
        ({"content": ""}, ""),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            "<think>\n\n</think>\n\na\n\nb",
        ),
    ],
)
def test_a_final_assistant_message_is_continued(last: dict[str, Any], tail: str) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", **last}]
    call = rendered({"messages": messages, "chat_template_kwargs": {"enable_thinking": False}})
    assert isinstance(call, TemplateCall)
    assert call.messages == messages[:1]
    assert call.tail == tail
    assert call.add_generation_prompt is (tail != "")
    assert call.kwargs["enable_thinking"] is True


@pytest.mark.parametrize(
    "body",
    [
        {"continue_final_message": True},
        {"chat_template_kwargs": {"enable_thinking": "yes"}},
        {"messages": [{"role": "assistant", "content": "a"}] * 2},
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]},
        {"messages": [{"role": "user"}]},
        {"tools": [{"function": {"name": "f"}}]},
    ],
)
def test_what_the_server_refuses_is_not_counted(body: dict[str, Any]) -> None:
    assert rendered(body) == OpaquePrompt("malformed")


@pytest.mark.parametrize(
    ("body", "variables"),
    [
        ({}, {"enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True},
        ),
        (
            {"reasoning_effort": "low"},
            {"enable_thinking": True, "reasoning_effort": "low", "reasoning_strength": "low"},
        ),
    ],
)
def test_effort_and_kwargs(body: dict[str, Any], variables: dict[str, Any]) -> None:
    call = rendered(body)
    assert isinstance(call, TemplateCall)
    assert call.kwargs == variables
