"""Which events have a mould, and what is recognised by one."""

from __future__ import annotations

import json

import pytest

from gateway.dialects import answers
from gateway.dialects.channels import pieces_of_event
from gateway.dialects.moulds import Moulds
from gateway.dialects.openai_common import ChoicesFold
from recorded import load

BEFORE = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"'
AFTER = b'"},"finish_reason":null}]}\n\n'
KEY = (None, "choices", 0, "content")


def event(written):
    return BEFORE + written + AFTER


def learnt(raw):
    moulds = Moulds()
    moulds.learn(raw, pieces_of_event(json.loads(raw.partition(b"data: ")[2])))
    return moulds


@pytest.mark.parametrize(
    ("written", "text", "as_written"),
    [
        (b"word", "word", True),
        (b" word", " word", True),
        (b"", "", True),
        ("北🙂".encode(), "北🙂", True),
        (b"a\\nb", "a\nb", False),
        (b"\\u0061", "a", False),
        ("\u2028".encode(), "\u2028", False),
    ],
)
def test_an_event_of_the_mould_is_recognised(written, text, as_written):
    known = learnt(event(b" first")).recognise(event(written))
    assert known is not None
    assert (known.mould.key, known.text, known.as_written) == (KEY, text, as_written)


@pytest.mark.parametrize(
    "raw",
    [
        event(b"word").replace(b'"1"', b'"2"'),  # another id
        event(b"word").replace(b"null", b'"stop"'),
        event(b'word","role":"assistant'),  # a quote may begin anything
        event(b'\\"'),
        event(b"\\"),  # the quote after it would be text
        event(b"a\n\ndata: b"),  # two events
        event(b"\xff"),
        event(b"\\x"),
        event(b"a") + event(b"b"),
        event(b"a")[:-1],
        BEFORE + AFTER[1:],  # one quote is both
        event(b"a" * 70_000),
    ],
)
def test_what_may_be_anything_else_is_not(raw):
    assert learnt(event(b" first")).recognise(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        event(b"1"),  # the id is written so too
        event(b"a.b"),
        event(b"a").replace(b'"1"', b'"\\u0031"'),
        event(b"a").replace(b"\n", b"\r\n"),
        b'data: {"choices":[{"delta":{"content":"a","reasoning":"b"}}]}\n\n',
        b'data: {"type":"response.output_text.done","text":"whole"}\n\n',
    ],
)
def test_an_event_without_one_plain_place_has_no_mould(raw):
    assert learnt(raw).recognise(raw) is None


def test_the_last_moulds_are_kept_and_forgotten():
    moulds = Moulds()
    spelt = [event(b"a").replace(b'"index":0', b'"index":%d' % place) for place in range(5)]
    for raw in spelt:
        moulds.learn(raw, pieces_of_event(json.loads(raw.partition(b"data: ")[2])))
    assert [moulds.recognise(raw) is not None for raw in spelt] == [False, True, True, True, True]
    moulds.forget()
    assert moulds.recognise(spelt[-1]) is None


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("sglang", "chat_stream_nousage"),
        ("sglang", "messages_stream"),
        ("vllm", "chat_stream_nousage"),
        ("llamacpp", "chat_stream_nousage"),
        ("transformers-serve", "chat_stream_nousage"),
    ],
)
def test_plain_deltas_of_real_engines_are_recognised(engine, name):
    moulds, recognised = Moulds(), 0
    for raw in load(engine, name).body.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = raw.partition(b"data: ")[2]
        if data.startswith(b"{"):
            recognised += moulds.recognise(raw + b"\n\n") is not None
            moulds.learn(raw + b"\n\n", pieces_of_event(json.loads(data)))
    assert recognised


def test_a_stream_of_unlike_events_is_soon_no_longer_read_for_moulds(monkeypatch):
    read = []
    monkeypatch.setattr(answers, "pieces_of_event", lambda value: read.append(value) or [])
    reader = answers.StreamReader(ChoicesFold(1, strip=False))
    for _ in range(1000):
        reader.receive(event(b"word"))
    assert reader.result().events == 1000
    assert len(read) < 20
