from __future__ import annotations

from typing import Any

import pytest

from gateway.rendering import common, generic, llama_cpp, sglang, vllm
from gateway.rendering.common import (
    Templates,
    TemplateTraits,
    Unrenderable,
    decoded_object,
    refuse_part,
)
from gateway.types import ChatPrompt, OpaquePrompt

TEMPLATES = Templates(TemplateTraits("{{ messages }}"))
RENDERERS = {
    "vllm": vllm.render,
    "sglang": sglang.render,
    "llama_cpp": llama_cpp.render,
    "generic": generic.render,
}
USER = {"role": "user", "content": "q"}


def reason(renderer: str, dialect: str, body: Any) -> str | None:
    result = RENDERERS[renderer](ChatPrompt(dialect, body), TEMPLATES)
    return result.reason if isinstance(result, OpaquePrompt) else None


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize(
    ("part", "word"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "image"),
        ({"type": "input_image", "image_url": "data:,"}, "image"),
        ({"type": "input_audio", "input_audio": {}}, "audio"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "video"),
        ({"type": "file", "file": {"file_id": "x"}}, "file"),
        ({"image_url": "data:,"}, "image"),
        ({"type": "hologram"}, "unknown_part"),
        ({"type": ["text"]}, "unknown_part"),
        ({}, "unknown_part"),
    ],
)
def test_parts_that_are_no_text_are_named(renderer: str, part: Any, word: str) -> None:
    body = {"messages": [{"role": "user", "content": [part]}]}
    assert reason(renderer, "openai_chat", body) == word


@pytest.mark.parametrize("renderer", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("block", "word"),
    [
        ({"type": "image", "source": {"type": "base64", "data": "x"}}, "image"),
        ({"type": "document", "source": {}}, "file"),
        ({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}, "image"),
    ],
)
def test_anthropic_media_are_named(renderer: str, block: Any, word: str) -> None:
    body = {"messages": [{"role": "user", "content": [block]}]}
    assert reason(renderer, "anthropic_messages", body) == word


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize(
    ("member", "value", "word"),
    [
        ("chat_template", "{{ x }}", "request_template"),
        ("previous_response_id", "r", "server_history"),
        ("conversation", "c", "server_history"),
        ("truncate_prompt_tokens", 10, "truncation"),
        ("input_ids", [1], "input_ids"),
        ("kv_transfer_params", {"prompt_token_ids": [1]}, "input_ids"),
    ],
)
def test_input_no_template_shows(renderer: str, member: str, value: Any, word: str) -> None:
    assert reason(renderer, "openai_chat", {"messages": [USER], member: value}) == word


@pytest.mark.parametrize("renderer", ["vllm", "sglang", "llama_cpp"])
@pytest.mark.parametrize(
    ("kwargs", "word"),
    [
        ({"chat_template": "x"}, "request_template"),
        ({"tools": []}, "template_kwargs"),
        ({"messages": []}, "template_kwargs"),
        ({"tokenize": True}, "template_kwargs"),
        ("text", "malformed"),
    ],
)
def test_kwargs_that_reach_past_the_template(renderer: str, kwargs: Any, word: str) -> None:
    body = {"messages": [USER], "chat_template_kwargs": kwargs}
    assert reason(renderer, "openai_chat", body) == word


HOSTILE = [None, 5, "x", [], {}, [None], ["x"], [5], [[]], [{}], [{"role": None}], [{"role": 5}],
           [{"role": "user", "content": 5}], [{"role": "user", "content": [None]}],
           [{"role": "assistant", "content": "", "tool_calls": 5}],
           [{"role": "assistant", "content": "", "tool_calls": [5]}],
           [{"role": "assistant", "content": "", "tool_calls": [{"function": 5}]}],
           [{"role": "user", "content": [{"type": "text", "text": None}]}],
           [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}],
           [{"role": "assistant", "content": [{"type": "tool_use", "input": "x"}]}],
           [{"role": "system", "content": 5}], [{"type": 5}], [{"type": "function_call"}],
           [{"type": "reasoning", "content": 5}],
           [{"type": "message", "role": "assistant"}]]  # fmt: skip


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic_messages", "x"])
@pytest.mark.parametrize("messages", HOSTILE, ids=repr)
def test_malformed_messages_are_never_a_crash(renderer: str, dialect: str, messages: Any) -> None:
    reason(renderer, dialect, {"messages": messages, "input": messages, "tools": messages})
    reason(renderer, dialect, {"messages": [USER], "input": "q", "tools": messages})
    reason(renderer, dialect, {"messages": [USER], "input": "q", "system": messages})


@pytest.mark.parametrize("member", ["reasoning", "thinking", "output_config", "tool_choice"])
@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic_messages"])
@pytest.mark.parametrize("renderer", RENDERERS)
def test_malformed_options_are_never_a_crash(renderer: str, dialect: str, member: str) -> None:
    tools = [{"type": "function", "name": "f", "function": {"name": "f"}, "input_schema": {}}]
    for value in (5, "x", [], {}, {"type": 5}, {"effort": 5}, {"function": 5}, {"type": []}):
        body = {"messages": [USER], "input": "q", "tools": tools, member: value}
        reason(renderer, dialect, body)


@pytest.mark.parametrize("text", ["", "[1]", "5", "{bad", '"x"', "null", "9" * 5000, "[" * 10**5])
def test_only_objects_are_decoded(text: str) -> None:
    assert decoded_object(text) is None


def test_object_keeps_its_order() -> None:
    assert list(decoded_object('{"b": 1, "a": NaN}') or ()) == ["b", "a"]


def test_template_for_tools_is_taken_only_where_there_is_one() -> None:
    both = Templates(TemplateTraits("default"), TemplateTraits("tools"))
    assert both.select(has_tools=True).source == "tools"
    assert both.select(has_tools=False).source == "default"
    assert TEMPLATES.select(has_tools=True) is TEMPLATES.default


def test_reason_comes_back_as_a_value() -> None:
    def build(_prompt: ChatPrompt, _templates: Templates) -> Any:
        raise refuse_part({"type": "image"})

    assert common.rendering(build)(ChatPrompt("x", {}), TEMPLATES) == OpaquePrompt("image")
    assert issubclass(Unrenderable, Exception)
