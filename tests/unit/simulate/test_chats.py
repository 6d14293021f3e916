"""Each dialect's conversation in OpenAI's shape, by SGLang 0.5.23's conversion rules."""

from typing import Any

import pytest

from gateway.simulate.chats import from_anthropic, from_openai, from_responses
from gateway.simulate.engine import EngineRefusal

QUESTION = [{"role": "user", "content": "Hi"}]
TWO_PARTS = [{"type": "text", "text": "Look"}, {"type": "text", "text": "up"}]
PARAMETERS = {"type": "object", "properties": {}}


def anthropic(body: dict[str, Any], *, inline: bool = True) -> list[Any]:
    return list(from_anthropic(body, inline_system=inline).messages)


def responses(body: dict[str, Any], *, inline: bool = True) -> list[Any]:
    return list(from_responses(body, inline_system=inline).messages)


@pytest.mark.parametrize("body", [{}, {"messages": None}, {"messages": []}])
def test_messages_are_required(body: dict[str, Any]):
    with pytest.raises(EngineRefusal):
        from_openai(body)


def test_tools_are_dumped_as_the_engine_dumps_them():
    tool = {"type": "function", "extra": 1, "function": {"parameters": PARAMETERS, "name": "f"}}
    assert from_openai({"messages": QUESTION, "tools": [tool]}).tools == [
        {
            "type": "function",
            "function": {"parameters": PARAMETERS, "name": "f", "description": None},
            "defer_loading": None,
        }
    ]


def test_tool_choice_decides_what_the_template_sees():
    tools = [{"function": {"name": name}} for name in ("f", "g")]
    body = {"messages": QUESTION, "tools": tools}
    assert len(from_openai(body).tools or ()) == 2
    assert from_openai(body | {"tool_choice": "none"}).tools is None
    named = from_openai(body | {"tool_choice": {"type": "function", "function": {"name": "g"}}})
    assert [tool["function"]["name"] for tool in named.tools or ()] == ["g"]


def test_a_users_name_is_not_seen_by_the_template():
    chat = from_openai({"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]})
    assert chat.messages == QUESTION


def test_reasoning_effort_sets_the_thinking_switches():
    kwargs = from_openai({"messages": QUESTION, "reasoning_effort": "none"}).kwargs
    assert kwargs == {"reasoning_effort": "none", "thinking": False, "enable_thinking": False}


def test_anthropic_system_and_blocks():
    body = {
        "system": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}],
        "messages": [
            {"role": "user", "content": TWO_PARTS},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "before"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": "42"},
                    {"type": "text", "text": "after"},
                ],
            },
        ],
    }
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert anthropic(body) == [
        {"role": "system", "content": "One\nTwo"},
        {"role": "user", "content": TWO_PARTS},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "before"},
        {"role": "tool", "tool_call_id": "t1", "content": "42"},
        {"role": "user", "content": "after"},
    ]


def test_anthropic_inline_system_is_merged_where_the_template_drops_it():
    body = {"system": "One", "messages": [*QUESTION, {"role": "system", "content": " Two "}]}
    assert anthropic(body, inline=False) == [{"role": "system", "content": "One\nTwo"}, *QUESTION]
    assert len(anthropic(body)) == 3


def test_anthropic_thinking_needs_a_reasoning_parser():
    with pytest.raises(EngineRefusal, match="not supported"):
        anthropic({"messages": QUESTION, "thinking": {"type": "enabled", "budget_tokens": 2048}})
    assert anthropic({"messages": QUESTION, "thinking": {"type": "disabled"}}) == QUESTION


def test_responses_items_become_turns():
    body = {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {
                "type": "message",
                "id": "m1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Ok"}],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
        ],
    }
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert responses(body) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": [{"type": "text", "text": "Ok"}],
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


def test_responses_text_and_developer_label():
    assert responses({"input": "Hi"}) == QUESTION
    body = {"instructions": "One", "input": [*QUESTION, {"role": "developer", "content": "Two"}]}
    assert responses(body, inline=False) == [
        {"role": "system", "content": "One\n\nDeveloper instructions:\nTwo"},
        *QUESTION,
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": []},
        {"input": [3]},
        {"input": [{"type": "computer_call"}]},
        {"input": "Hi", "previous_response_id": "resp_1"},
    ],
)
def test_responses_refuses_what_it_cannot_use(body: dict[str, Any]):
    with pytest.raises(EngineRefusal):
        responses(body)
