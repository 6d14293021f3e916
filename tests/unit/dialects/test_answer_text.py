"""What a client is told, out of the bytes that go to it."""

from __future__ import annotations

import json

import pytest

from gateway.dialects.answer_text import AnswerText, Heard
from recorded import load

# engine, exchange, all of what was generated
STREAMS = [
    ("sglang", "chat_stream", " Preparationpreload CBC"),
    ("sglang", "completions_stream", "('^天府😰"),
    ("sglang", "messages_stream", "もらえ Keystone sinful"),
    ("sglang", "responses_stream", "uning"),
    ("sglang", "generate_stream", "ForeignKey зависитยิ"),
    ("vllm", "chat_stream_continuous", " Preparation_POLLeder"),
    ("vllm", "responses_stream", "での('{{"),
    ("llamacpp", "messages_stream", "flashy\ufffdengineering"),
    ("llamacpp", "responses_stream", "uning\ufffdnat"),
    ("transformers-serve", "chat_stream", "columnName有序笠"),
]


@pytest.mark.parametrize("step", [1, 100, 100_000])
@pytest.mark.parametrize(("engine", "name", "expected"), STREAMS)
def test_streams_of_real_engines(engine, name, expected, step):
    body = load(engine, name).body
    text = AnswerText(cumulative=name.startswith("generate"))
    channels = {}
    for start in range(0, len(body), step):
        for heard in text.of_events(body[start : start + step]):
            if not heard.copy:
                channels[heard.channel] = channels.get(heard.channel, "") + heard.text
    assert text.complete
    assert expected in channels.values()
    assert len(channels) <= 3  # and no text is scattered over many


@pytest.mark.parametrize(
    ("engine", "name", "expected"),
    [
        ("sglang", "chat", "cılı TECHNO_S Truly Truly_Call猞שבון"),
        ("sglang", "completions_batch", " DETAILS复习setFlash"),
        ("sglang", "messages", " babe babe babe slowed主页.detach"),
        ("sglang", "generate", "tog Soccer Automatically"),
        ("sglang", "responses", "uning_S hü hü"),
    ],
)
def test_whole_answers_of_real_engines(engine, name, expected):
    assert Heard(None, expected) in AnswerText().of_body(load(engine, name).body)


def sse(value):
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def test_all_channels_of_a_chunk():
    call = {"index": 1, "function": {"name": "find", "arguments": '{"city'}}
    choices = [
        {"index": 0, "delta": {"content": "a", "reasoning_content": "b"}},
        {"index": 2, "delta": {"refusal": "c", "tool_calls": [call]}},
    ]
    heard = AnswerText().of_events(sse({"id": "x", "choices": choices}))
    assert [each.text for each in heard] == ["a", "b", "c", "find", '{"city']
    assert len({each.channel for each in heard}) == 5


def test_tokens_with_probabilities_are_a_copy():
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}
    copies = [each.copy for each in AnswerText().of_events(sse({"choices": [choice]}))]
    assert sorted(copies) == [False, True]


@pytest.mark.parametrize(
    "data", [b"data: [DONE]\n\n", b": ping\n\n", b"data: not json\n\n", b"data: 7\n\n"]
)
def test_what_holds_no_text(data):
    text = AnswerText()
    assert text.of_events(data) == []
    assert text.complete


def test_what_cannot_be_read_is_said():
    text = AnswerText()
    assert text.of_body(b"<html>") == []
    assert not text.complete
    deep = AnswerText()
    deep.of_body(b"[" * 100_000 + b"]" * 100_000)
    assert not deep.complete
    large = AnswerText()
    large.of_events(b"data: " + b"x" * 17 * 2**20)
    assert not large.complete


def test_numbers_no_json_has_are_read_as_engines_mean_them():
    heard = AnswerText().of_body(b'{"choices": [{"text": "a", "score": NaN}]}')
    assert heard == [Heard(None, "a")]
