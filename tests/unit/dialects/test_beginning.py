"""What of a prompt tells that it shares a prefix with another."""

from __future__ import annotations

import json

import pytest

from gateway.dialects import routes
from gateway.dialects.beginning import IDS, PART, beginning, user_of


def parsed(path, **body):
    dialect = routes.match("POST", path)
    return dialect.parse(path, json.dumps({"model": "m", **body}).encode())


def chat(*turns, **more):
    roles = {"s": "system", "u": "user", "a": "assistant"}
    messages = [{"role": roles[turn[0]], "content": turn[1:]} for turn in turns]
    return parsed("/v1/chat/completions", messages=messages, **more)


def test_a_conversation_begins_alike_in_every_turn():
    first = chat("sYou help.", "uHello")
    later = chat("sYou help.", "uHello", "aHi", "uAnd now?")
    assert beginning(first) == beginning(later) != b""


@pytest.mark.parametrize(
    "other",
    [
        chat("sYou help.", "uHallo"),
        chat("sYou do not.", "uHello"),
        chat("sYou help.Hello"),
        chat("uYou help.", "uHello"),
    ],
)
def test_other_beginnings_differ(other):
    assert beginning(other) != beginning(chat("sYou help.", "uHello"))


def test_the_system_message_of_each_dialect_counts():
    messages = [{"role": "user", "content": "Hello"}]
    for path, member, turns in (
        ("/v1/messages", "system", {"messages": messages, "max_tokens": 5}),
        ("/v1/responses", "instructions", {"input": messages}),
    ):
        one, same, other = (
            beginning(parsed(path, **{member: text}, **turns)) for text in ("a", "a", "b")
        )
        assert one == same != other


@pytest.mark.parametrize("text", ["x", "ä", "漢", "🙂"])
def test_only_the_first_bytes_of_a_part_count(text):
    long = text * PART
    assert beginning(chat("s" + long, "uHello")) == beginning(chat("s" + long + "y", "uHello"))
    assert beginning(chat("s" + long, "uHello")) != beginning(chat("s" + long, "uHallo"))
    assert len(beginning(chat("s" + long, "u" + long))) < 2 * PART + 100


def test_texts_and_token_ids_begin_too():
    one = parsed("/v1/completions", prompt="Hello")
    assert beginning(one) == beginning(parsed("/v1/completions", prompt="Hello")) != b""
    ids = list(range(IDS + 1))
    assert beginning(parsed("/v1/completions", prompt=ids)) == beginning(
        parsed("/v1/completions", prompt=[*ids[:-1], 7])
    )
    assert beginning(parsed("/v1/completions", prompt=[1, 2])) != beginning(
        parsed("/v1/completions", prompt=[2, 1])
    )
    assert beginning(parsed("/v1/completions", prompt=[[1, 2], [3]])) != b""


def test_what_shows_no_text_has_no_beginning():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert (
        beginning(parsed("/v1/chat/completions", messages=[{"role": "user", "content": [image]}]))
        == b""
    )


@pytest.mark.parametrize(
    ("body", "user"),
    [
        ({"user": "anna"}, "anna"),
        ({"metadata": {"user_id": "anna"}}, "anna"),
        ({}, ""),
        ({"user": 7}, ""),
        ({"metadata": "anna"}, ""),
    ],
)
def test_the_user_is_the_clients_word(body, user):
    assert user_of(chat("uHello", **body)) == user
