"""Which texts an answer holds, and which of them continue each other."""

from __future__ import annotations

import pytest

from gateway.dialects.channels import pieces_of_body, pieces_of_event
from gateway.dialects.sse import Splitter, data_of
from gateway.dialects.wire import decode_any
from recorded import load

STREAMS = [
    ("sglang", "chat_stream"),
    ("sglang", "completions_stream"),
    ("sglang", "generate_stream"),
    ("sglang", "messages_stream"),
    ("sglang", "responses_stream"),
    ("vllm", "chat_stream"),
    ("vllm", "completions_stream"),
    ("vllm", "messages_stream"),
    ("vllm", "responses_stream"),
    ("llamacpp", "chat_stream"),
    ("llamacpp", "completions_stream"),
    ("llamacpp", "messages_stream"),
    ("llamacpp", "responses_stream"),
]
WHOLE = [
    (engine, name)
    for engine in ("sglang", "vllm", "llamacpp")
    for name in ("chat", "completions", "messages", "responses")
]


def values(engine, name):
    splitter = Splitter()
    events = splitter.receive(load(engine, name).body) + splitter.end()
    return [value for event in events if (value := decode_any(data_of(event.raw))) is not None]


def strings(value):
    """Every string in a JSON value: the oracle."""
    if isinstance(value, str):
        yield value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from strings(item)


@pytest.mark.parametrize(("engine", "name"), STREAMS)
def test_recorded_streams_join_to_what_was_said(engine, name):
    joined, alone = {}, set()
    for value in values(engine, name):
        for piece in pieces_of_event(value):
            if piece.key is None:
                alone.add(piece.text)
            elif "generate" in name:
                joined[piece.key] = piece.text
            else:
                joined[piece.key] = joined.get(piece.key, "") + piece.text

    longest = max(joined.values(), key=len)
    assert len(longest) > 3
    if "responses" in name:  # these tell the whole text once more
        assert longest in alone
    assert len(joined) <= 3  # text, and perhaps a name or an empty tool call


@pytest.mark.parametrize(("engine", "name"), WHOLE)
def test_recorded_answers_hide_no_text(engine, name):
    value = decode_any(load(engine, name).body)
    seen = {piece.text for piece in pieces_of_body(value)}
    silent = set(strings(value)) - seen

    assert seen
    assert all(" " not in text for text in silent)  # ids, models, roles


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ({"choices": [{"index": 0, "logprobs": {"content": [
            {"token": " a", "top_logprobs": [{"token": "x"}]}, {"token": "b"}]}}]}, [" ab"]),
        ({"choices": [{"index": 0, "text": "t", "logprobs": {
            "tokens": ["a", "b"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}]}}]},
         ["t", "ab"]),
        ({"text": "t", "meta_info": {"output_token_logprobs": [[-1.0, 5, "a"], [-1.0, 6, "b"]]}},
         ["t", "ab"]),
        ({"prompt_logprobs": [None, {"5": {"logprob": -1.0, "decoded_token": "a"}}]}, ["a"]),
        ({"choices": [{"index": 0, "logprobs": None, "delta": {"content": ""}}]}, []),
        ({"prompt_token_ids": [1, 2, 3], "data": [[0.5]]}, []),
        ({"never": {"heard": ["of", {"this": "before"}]}}, ["of", "before"]),
        ("bare", ["bare"]),
        (None, []),
    ],
)  # fmt: skip
def test_tokens_are_joined_and_strange_members_are_read(value, texts):
    assert [piece.text for piece in pieces_of_event(value)] == texts
    assert [piece.text for piece in pieces_of_body(value)] == texts


def test_choices_and_tool_calls_are_told_apart_by_their_index_not_their_place():
    def chunk(choice, call, text):
        calls = [{"index": call, "function": {"arguments": text}}]
        return {"choices": [{"index": choice, "delta": {"tool_calls": calls}}]}

    keys = [
        pieces_of_event(chunk(choice, call, "x"))[0].key
        for choice, call in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]


def test_an_anthropic_block_begins_in_one_event_and_goes_on_in_others():
    begin = {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "text", "text": "a"},
    }
    delta = {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "text_delta", "text": "b"},
    }

    assert pieces_of_event(begin)[0].key == pieces_of_event(delta)[0].key is not None


def test_a_copy_of_a_finished_text_continues_nothing():
    done = {"type": "response.output_text.done", "output_index": 0, "text": "all of it"}
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "all"}

    assert pieces_of_event(done)[0].key is None
    assert pieces_of_event(delta)[0].key is not None
