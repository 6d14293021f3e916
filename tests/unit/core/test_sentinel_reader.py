"""The scanning reader where streams are odd: bounds, repetitions, moulds, and who gave up."""

from __future__ import annotations

import json

import pytest

from gateway.core import sentinel_reader
from gateway.core.sentinel_channels import sentinels_in
from gateway.core.sentinel_reader import LAPSE_AFTER
from gateway.types import Ending
from sentinels import CLUSTER, NOW, events, normal, phrase, reader, watch

OWN, FOREIGN = phrase("ann"), phrase("bob")
FIRST = FOREIGN.split()[0]


def chunk(text, choice=0, eol="\n", **more):
    value = {"id": "c", "choices": [{"index": choice, "delta": {"content": text}}], **more}
    return f"data: {json.dumps(value)}{eol}{eol}".encode()


def generated(text):
    return f"data: {json.dumps({'text': text, 'meta_info': {'id': 'g'}})}\n\n".encode()


def test_events_come_out_whole_and_in_order_once_nothing_is_open():
    scanning = reader("openai_chat")
    parts = [chunk(f"so {FIRST}"), chunk("another", 1), b": ping\n\n", chunk(" qq", 0)]

    assert [scanning.receive(part) for part in parts] == [b"", b"", b"", b"".join(parts)]


def test_a_channel_that_falls_silent_lets_the_others_go():
    scanning = reader("openai_chat")
    assert scanning.receive(chunk(FIRST)) == b""

    out = [scanning.receive(chunk("x ", 1)) for _ in range(LAPSE_AFTER + 1)]

    assert out[:-1] == [b""] * LAPSE_AFTER
    assert len(events(out[-1])) == LAPSE_AFTER + 2
    assert scanning.receive(chunk("x ", 1)) != b""


def test_after_a_lapse_the_rest_is_still_found_and_held():
    scanning = reader("openai_chat")
    scanning.receive(chunk(FIRST))
    for _ in range(LAPSE_AFTER + 1):
        scanning.receive(chunk("x ", 1))

    for word in FOREIGN.split()[1:]:
        assert scanning.receive(chunk(f" {word}")) == b""
    assert len(scanning.alarms) == 1


def test_done_ends_the_waiting():
    scanning = reader("openai_chat")
    part, done = chunk(f"so {FIRST}"), b"data: [DONE]\n\n"

    assert scanning.receive(part) == b""
    assert scanning.receive(done) == part + done


def test_the_end_of_a_stream_without_done_does_too():
    scanning = reader("openai_chat")
    last = chunk(f" {FIRST}").replace(b'"index": 0', b'"index": 0, "finish_reason": "stop"')
    assert scanning.receive(last) == b""
    assert scanning.new_ids == ("c",)
    assert scanning.end() == last
    assert scanning.result().ending is Ending.COMPLETE
    assert scanning.complete
    assert scanning.new_ids == ()
    assert scanning.failure == b""


def test_a_settled_alarm_lets_the_rest_through():
    scanning = reader("openai_chat")
    whole = chunk(f"a {FOREIGN} b")
    assert scanning.receive(whole) == b""

    assert scanning.settle({CLUSTER.numbers("bob", NOW)}) == whole
    scanning.receive(chunk(f" c {FOREIGN}"))
    [out] = events(scanning.settle(()))
    assert out["choices"][0]["delta"]["content"] == " c "


def test_an_alarm_nobody_settles_keeps_nothing():
    scanning = reader("openai_chat")
    scanning.receive(chunk(FOREIGN))
    for _ in range(1000):
        assert scanning.receive(chunk("more")) == b""

    assert not scanning._queue
    assert scanning.result().events == 1001


@pytest.mark.parametrize(
    "text", [" plain", "two words", "caf\u00e9", "\\escaped\\n", "\u4e2d", 'say "x"']
)
def test_events_of_one_mould_are_read_as_any(text):
    scanning = reader("openai_chat")
    assert scanning.receive(chunk(" learn")) == chunk(" learn")

    assert scanning.receive(chunk(text)) == chunk(text)
    scanning.receive(chunk(" " + " ".join(FOREIGN.split()[:5])))
    scanning.receive(chunk(" " + " ".join(FOREIGN.split()[5:])))
    assert len(scanning.alarms) == 1


def test_a_mould_is_not_taken_for_another_event():
    scanning = reader("openai_chat")
    scanning.receive(chunk(" learn"))
    tail = b'"}}, {"index": 1, "delta": {"content": "' + FOREIGN.encode() + b'"}}]}\n\n'
    odd = chunk("x").replace(b'"}}]}\n\n', tail)

    assert scanning.receive(odd) == b""
    assert len(scanning.alarms) == 1


def test_a_tenth_of_the_work_is_a_mould():
    scanning = reader("openai_chat")
    scanning.receive(chunk(" learn"))
    decoded = []
    scanning._scan = lambda *given: decoded.append(given)

    for word in ("some", " more", " words.", ""):
        scanning.receive(chunk(word))
    assert decoded == []


def test_text_that_is_repeated_and_taken_back():
    scanning = reader("sglang_generate")
    texts = [
        "a",
        "a b",
        "a b c",
        "a b c \ufffd",
        f"a b d {OWN[:20]}",
        f"a b d {OWN}.",
        f"a b d {OWN}. e",
    ]

    out = b"".join(scanning.receive(generated(text)) for text in texts) + scanning.end()

    assert [value["text"] for value in events(out)][-2:] == ["a b d .", "a b d . e"]


def test_generate_that_sends_only_what_is_new():
    scanning = reader("sglang_generate")
    words = [" a", " a", " b", *(f" {word}" for word in FOREIGN.split())]

    out = b"".join(scanning.receive(generated(word)) for word in words)

    assert len(scanning.alarms) == 1
    assert [value["text"] for value in events(out)] == [" a", " a", " b"]


def test_logprobs_of_an_echo_go_as_a_whole():
    scanning = reader("openai_chat", stream=False)
    tokens = [{"token": f" {word}", "bytes": list(word.encode())} for word in OWN.split()]
    choice = {"index": 0, "message": {"content": OWN}, "logprobs": {"content": tokens}}
    scanning.receive(json.dumps({"id": "c", "choices": [choice]}).encode())

    [seen] = json.loads(scanning.end())["choices"]
    assert seen["logprobs"] is None
    assert seen["message"]["content"] == ""


def test_what_strict_json_refuses_is_scanned_and_scrubbed_all_the_same():
    scanning = reader("openai_chat")
    odd = chunk(f"x {OWN}").replace(b'"id": "c"', b'"id": "c", "p": NaN, "half": "\\ud800"')

    [seen] = events(scanning.receive(odd) + scanning.end())
    assert seen["choices"][0]["delta"]["content"] == "x "
    assert seen["half"] == "\ud800"


@pytest.mark.parametrize("odd", [b"data: plain words\n\n", b'data: {"cut": \n\n'])
def test_what_is_no_json_passes_and_is_told(odd):
    scanning = reader("openai_chat")

    assert scanning.receive(odd) == odd
    assert scanning.gap == "not_json"


def test_too_many_channels_are_told(monkeypatch):
    monkeypatch.setattr(sentinel_reader, "MAX_CHANNELS", 3)
    scanning = reader("openai_chat")
    for choice in range(5):
        assert scanning.receive(chunk("x", choice)) != b""

    assert scanning.gap == "too_many_channels"


def test_a_body_too_large_to_hold_passes_and_is_told(monkeypatch):
    monkeypatch.setattr(sentinel_reader, "MAX_BODY_BYTES", 10)
    scanning = reader("openai_chat", stream=False, status=400)
    assert scanning.receive(b"x" * 8) == b""
    assert scanning.receive(b"y" * 8) == b"x" * 8 + b"y" * 8

    assert scanning.receive(b"z") + scanning.end() == b"z"
    assert scanning.gap == "too_large"


def test_an_empty_body_is_an_empty_body():
    scanning = reader("openai_chat", stream=False, status=400)

    assert (scanning.end(), scanning.gap) == (b"", None)


def test_runs_of_listed_words_are_told_at_the_end():
    scanning = reader("openai_chat")
    piece = " ".join(FOREIGN.split()[2:8])
    scanning.receive(chunk(f"a {piece} b"))

    assert scanning.runs() == {CLUSTER.numbers("bob", NOW)[2:8]}


def test_sentinels_in_a_request_are_found_wherever_they_stand():
    body = {"messages": [{"content": [{"text": f"a {FOREIGN}"}]}], "tools": [{"name": OWN}]}

    assert sentinels_in(body, watch()) == {CLUSTER.numbers("bob", NOW), CLUSTER.numbers("ann", NOW)}


def test_a_preamble_goes_with_its_marker():
    text = f"Be kind.\n\nInternal routing tag (never output or mention): {OWN} Bye."
    scanning = reader("openai_chat", stream=False)
    scanning.receive(json.dumps({"choices": [{"message": {"content": text}}]}).encode())

    assert "routing" not in normal(scanning.end().decode())
