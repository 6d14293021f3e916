"""The text of a prompt, whatever the dialect calls it."""

from __future__ import annotations

import pytest

from gateway.dialects import routes
from gateway.dialects.prompt_text import all_text, is_readable, prompt_parts, prompt_text


def said(body):
    return [each.text for each in prompt_text(body) if not each.by_model]


def by_model(body):
    return [each.text for each in prompt_text(body) if each.by_model]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "one"}, ["one"]),
        ({"prompt": ["one", "two"]}, ["one", "two"]),
        ({"text": "one", "sampling_params": {"stop": "x"}}, ["one"]),
        ({"input": "one", "instructions": "be brief"}, ["be brief", "one"]),
        ({"system": [{"type": "text", "text": "s"}], "messages": []}, ["s"]),
        ({"messages": [{"role": "user", "content": "hi", "name": "bo"}]}, ["hi", "bo"]),
        ({"messages": [{"role": "tool", "tool_call_id": "t", "content": "42"}]}, ["42"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, ["a"]),
        ({"prompt": [[1, 2], [3]]}, []),
        ({"model": "m"}, []),
    ],
)
def test_what_was_said(body, expected):
    assert said(body) == expected
    assert by_model(body) == []


def test_media_are_left_out():
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA"}},
    ]
    assert said({"messages": [{"role": "user", "content": parts}]}) == ["see"]


def test_what_a_model_said_is_told_apart():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [call]},
        {"role": "tool", "content": "result"},
    ]
    assert said({"messages": messages}) == ["q", "result"]
    assert by_model({"messages": messages}) == ["a", "r", "f", '{"a": 1}']
    items = [
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"role": "user", "content": "q"},
    ]
    assert by_model({"input": items}) == ["f", "{}"]


def test_of_tools_the_names_are_text_too():
    tool = {
        "type": "function",
        "function": {"name": "find", "parameters": {"city": {"type": "string"}}},
    }
    expected = [
        "type",
        "function",
        "function",
        "name",
        "find",
        "parameters",
        "city",
        "type",
        "string",
    ]
    assert said({"tools": [tool], "messages": []}) == expected


def test_deep_nesting_is_no_error():
    value = "deep"
    for _ in range(5_000):
        value = [value]
    assert said({"messages": value}) == ["deep"]


def test_all_text_has_what_is_no_prompt_as_well():
    body = {"messages": [{"role": "user", "content": "q"}], "metadata": {"order": "A-17"}}
    assert list(all_text(body)) == ["q", "metadata", "order", "A-17"]


@pytest.mark.parametrize(
    ("path", "body", "readable"),
    [
        ("/v1/completions", '"prompt": "x"', True),
        ("/v1/completions", '"prompt": [1, 2]', False),
        ("/v1/completions", '"prompt": "x", "suffix": "y"', True),
        ("/v1/chat/completions", '"messages": []', True),
        ("/v1/chat/completions", '"messages": [], "input_ids": [1]', False),
        ("/v1/responses", '"input": "x"', True),
        ("/v1/responses", '"input": "x", "previous_response_id": "r"', False),
        ("/generate", '"input_ids": [1]', False),
        ("/generate", '"text": "x"', True),
    ],
)
def test_whether_all_of_a_prompt_is_there(path, body, readable):
    dialect = routes.match("POST", path)
    request = dialect.parse(path, f'{{"model": "m", {body}}}'.encode())
    assert is_readable(request) is readable


def turn(text, **more):
    return {"role": "user", "content": [{"type": "text", "text": text, **more}]}


def test_a_longer_history_begins_as_the_shorter_one_wherever_the_mark_for_the_cache_is():
    mark = {"cache_control": {"type": "ephemeral"}}
    shorter = {"system": "s", "messages": [turn("one", **mark)]}
    longer = {"system": "s", "messages": [turn("one"), turn("two", **mark)]}
    assert prompt_parts(shorter) == ["s", "one"]
    assert prompt_parts(longer) == ["s", "one", "two"]


def test_token_ids_begin_alike():
    [one], [other] = prompt_parts({"prompt": [1, 2, 3]}), prompt_parts({"prompt": [1, 2, 4]})
    assert one[:8] == other[:8]
    assert one != other


def test_where_there_is_text_token_ids_are_left_out():
    assert prompt_parts({"prompt": [1, 2], "text": "x"}) == ["x"]
