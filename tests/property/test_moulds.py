"""Recognising events by their mould changes nothing: every reader says what it says without."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import sentinel_reader
from gateway.dialects import answer_text, answers, routes
from sentinels import phrase, reader

unhurried = settings(deadline=None, max_examples=150)

REQUESTS = {
    "/v1/chat/completions": {"model": "m", "messages": [], "stream": True},
    "/v1/completions": {"model": "m", "prompt": "p", "stream": True},
    "/v1/responses": {"model": "m", "input": "p", "stream": True},
    "/v1/messages": {"model": "m", "messages": [], "stream": True},
    "/generate": {"text": "p", "stream": True},
}
# Words that mean something to a reader where they are no text, and what breaks JSON's strings.
TELLING = [
    "usage", "error", "id", "finish_reason", "[DONE]", "event: error", "event:error", "object",
    "message_start", "message_delta", "message_stop", "response.completed", "response.failed",
    'a "usage" of', "\\", "\n", "\r\n\r\n", "\x7f", "\u2028", "é", "北", "\ud800", "", " ",
]  # fmt: skip
PLAIN = ["word", " word", "Pool", "8"]
WORDS = st.sampled_from(PLAIN * 4 + TELLING) | st.text(max_size=4)
IDS = st.sampled_from(["one"] * 8 + ["two", "", None])
FINISH = st.sampled_from([None] * 12 + ["stop"])
PLACE = st.sampled_from([0, 0, 0, 1])


def chat(word, identity, finish, place):
    choice = {"index": place, "delta": {"content": word}, "finish_reason": finish}
    return {"id": identity, "object": "chat.completion.chunk", "choices": [choice]}


def nulls(word, identity, finish, place):
    choice = {"finish_reason": finish, "index": place, "delta": {"content": word, "role": None}}
    return {"choices": [choice], "usage": None, "id": identity}


def completion(word, identity, finish, place):
    return {"id": identity, "choices": [{"index": place, "text": word, "finish_reason": finish}]}


def message(word, identity, finish, place):
    delta = {"type": "text_delta", "text": word}
    if finish:
        return {"type": "message_delta", "delta": {"stop_reason": finish}, "usage": {}}
    if identity == "two":
        return {"type": "message_start", "message": {"id": identity, "content": [word]}}
    return {"type": "content_block_delta", "index": place, "delta": delta}


def response(word, identity, finish, place):
    if finish or identity in ("two", ""):
        status = "completed" if finish else "in_progress"
        output = [{"type": "message", "content": [{"text": word}]}]
        told = {"id": identity, "status": status, "output": output}
        return {"type": f"response.{status}", "response": told}
    return {"type": "response.output_text.delta", "output_index": place, "delta": word}


def generated(word, identity, finish, place):
    reason = {"type": finish} if finish else None
    meta = {"id": identity, "finish_reason": reason, "prompt_tokens": 5, "completion_tokens": 3}
    return {"index": place, "text": word, "meta_info": meta}


BUILDERS = {
    "/v1/chat/completions": st.sampled_from([chat, nulls]),
    "/v1/completions": st.just(completion),
    "/v1/responses": st.just(response),
    "/v1/messages": st.just(message),
    "/generate": st.just(generated),
}


def written(value, *, ascii_only, compact, eol):
    name = f"event: {value['type']}{eol}" if "type" in value else ""
    separators = (",", ":") if compact else None
    data = json.dumps(value, ensure_ascii=ascii_only, separators=separators)
    return f"{name}data: {data}{eol}{eol}".encode("utf-8", "surrogatepass")


@st.composite
def streams(draw, path):
    """Events of one engine, alike as they are in service, with some that are not."""
    build = draw(BUILDERS[path])
    engine = {
        "ascii_only": draw(st.booleans()),
        "compact": draw(st.booleans()),
        "eol": draw(st.sampled_from(["\n", "\n", "\n", "\r\n"])),
    }
    said = draw(st.lists(st.tuples(WORDS, IDS, FINISH, PLACE), min_size=4, max_size=24))
    events = [written(build(*each), **engine) for each in said]
    for at, odd in draw(
        st.lists(
            st.tuples(
                st.integers(0, 24),
                st.sampled_from(
                    [b": note\n\n", b"data: [DONE]\n\n", b'data: {"error":{"message":"q"}}\n\n',
                     b"data: {\n\n", b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n']
                ),
            ),
            max_size=3,
        )
    ):  # fmt: skip
        events.insert(at, odd)
    return events


def chunks(events, places, *, whole):
    """The bytes as they are read: an event at a time, or cut anywhere."""
    body = b"".join(events)
    if whole:
        return events
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


class NoMoulds:
    def learn(self, raw, pieces):
        pass

    def forget(self):
        pass

    def recognise(self, raw):
        return None


def both(read):
    """What ``read`` returns with moulds and without."""
    with_them = read()
    with pytest.MonkeyPatch.context() as patched:
        for module in (answers, answer_text, sentinel_reader):
            patched.setattr(module, "Moulds", NoMoulds)
        return with_them, read()


def reader_of(path):
    request = routes.match("POST", path).parse(path, json.dumps(REQUESTS[path]).encode())
    return routes.match("POST", path).reader(
        request, status=200, content_type="text/event-stream", content_encoding=""
    )


def step_by_step(one, pieces):
    steps = [(one.receive(piece), one.new_ids, one.failure, one.complete) for piece in pieces]
    return steps, one.end(), one.new_ids, one.failure, one.result()


PLACES = st.lists(st.integers(0, 10_000), max_size=8)


@pytest.mark.parametrize("path", REQUESTS)
@unhurried
@given(st.data(), PLACES, st.booleans())
def test_a_dialects_reader_says_the_same(path, data, places, whole):
    pieces = chunks(data.draw(streams(path)), places, whole=whole)
    with_them, without = both(lambda: step_by_step(reader_of(path), pieces))
    assert with_them == without


@pytest.mark.parametrize("text", ["[DONE]", "usage", "error", "id", "event: error"])
def test_a_text_like_a_marker_is_looked_into_as_before(text):
    said = [("word", 0), ("word", 1), ("word", 1), (text, 1), ("word", 1)]
    engine = {"ascii_only": True, "compact": True, "eol": "\n"}
    pieces = [written(generated(word, "one", None, place), **engine) for word, place in said]
    with_them, without = both(lambda: step_by_step(reader_of("/generate"), pieces))
    assert with_them == without


@pytest.mark.parametrize("path", REQUESTS)
@unhurried
@given(st.data(), PLACES, st.booleans())
def test_an_answers_text_is_the_same(path, data, places, whole):
    pieces = chunks(data.draw(streams(path)), places, whole=whole)

    def read():
        text = answer_text.AnswerText(cumulative=path == "/generate")
        return [text.of_events(piece) for piece in pieces], text.complete

    with_them, without = both(read)
    assert with_them == without


@unhurried
@given(st.data(), PLACES, st.booleans(), st.sampled_from(["ann", "bob", None]))
def test_sentinels_are_found_and_cut_alike(data, places, whole, tenant):
    events = data.draw(streams("/v1/chat/completions"))
    marker = phrase(tenant).split(" ") if tenant else []
    spread = [
        written(chat(f" {word}", "one", None, 0), ascii_only=True, compact=True, eol="\n")
        for word in marker
    ]
    at = data.draw(st.integers(0, len(events)))
    pieces = chunks(events[:at] + spread + events[at:], places, whole=whole)

    def read():
        one = reader("openai_chat")
        out = []
        for piece in pieces:
            out.append(one.receive(piece))
            if one.alarms:
                out += [len(one.alarms), one.settle(frozenset())]
        return out, one.end(), len(one.alarms), one.gap, one.result()

    with_them, without = both(read)
    assert with_them == without
