from __future__ import annotations

import json

import pytest

from gateway.core import probe
from gateway.core.probe import Check, Detection, Exit, Reply, Report
from gateway.core.probe_text import Trace
from gateway.types import Verdict

FOREIGN = (Trace("P1.3", 4, 1),)
WHOLE = Reply(200, "words", "length", prompt_tokens=100)
OK = Check("within", Verdict.OK, "", 100, needed=True, answered=True)


def check(verdict: Verdict, *, needed: bool = False) -> Check:
    return Check("any", verdict, "", needed=needed)


@pytest.mark.parametrize(
    ("limit", "context", "pool", "expected"),
    [
        (1017, 4096, 1024, (1016, 1017, 1018, 1025, 1081, 3840)),
        (1017, 4096, 65_536, (1016, 1017, 1018, 1081, 3840, 4095)),
        (4089, 4096, 65_536, (4088, 4089, 4090, 4095, 4153)),
        (1000, None, None, (999, 1000, 1001, 1064)),
    ],
)
def test_lengths(limit, context, pool, expected):
    assert probe.lengths(limit, context, pool) == expected


@pytest.mark.parametrize(
    ("tokens", "context", "room"),
    [(10, None, 256), (10, 4096, 256), (4089, 4096, 7), (5000, 4096, 1)],
)
def test_the_answer_keeps_within_the_context(tokens, context, room):
    assert probe.answer_room(tokens, context) == room


def test_fills():
    assert probe.fills(1000, 4096, whole_pool=False) == 1
    assert probe.fills(1000, 4096, whole_pool=True) == 6
    assert probe.fills(1000, None, whole_pool=True) == 1


def test_abort_delays_span_the_window():
    assert list(probe.abort_delays(1)) == [0.0325]
    assert list(probe.abort_delays(3)) == pytest.approx([0.015, 0.0325, 0.05])


@pytest.mark.parametrize(
    ("reply", "found", "verdict"),
    [
        (WHOLE, (), Verdict.OK),
        (WHOLE, FOREIGN, Verdict.LEAK),
        (Reply(200, "words", "stop", prompt_tokens=99), (), Verdict.MISMATCH),
        (Reply(200, "words", "stop"), (), Verdict.UNVERIFIABLE),
        (Reply(200, "", None, prompt_tokens=100), (), Verdict.MISMATCH),
        (Reply(400, too_long=True), (), Verdict.MISMATCH),
        (Reply(400), (), Verdict.UNVERIFIABLE),
        (Reply(404), (), Verdict.UNVERIFIABLE),
        (Reply(500), (), Verdict.UNVERIFIABLE),
        (Reply(0), (), Verdict.UNVERIFIABLE),
    ],
)
def test_within_the_limit(reply, found, verdict):
    judged = probe.judge_within("within", 100, reply, found)
    assert judged.verdict is verdict
    assert judged.needed
    assert judged.answered is (verdict is Verdict.OK)


@pytest.mark.parametrize(
    ("reply", "found", "verdict"),
    [
        (Reply(400, too_long=True), (), Verdict.OK),
        (Reply(413), (), Verdict.OK),
        (Reply(422), (), Verdict.OK),
        (WHOLE, (), Verdict.MISMATCH),
        (Reply(200), (), Verdict.MISMATCH),
        (WHOLE, FOREIGN, Verdict.LEAK),
        (Reply(500), (), Verdict.MISMATCH),
        (Reply(401), (), Verdict.UNVERIFIABLE),
        (Reply(429), (), Verdict.UNVERIFIABLE),
        (Reply(503), (), Verdict.UNVERIFIABLE),
        (Reply(0), (), Verdict.UNVERIFIABLE),
    ],
)
def test_over_the_limit(reply, found, verdict):
    judged = probe.judge_over(100, reply, found)
    assert judged.verdict is verdict
    assert not judged.answered  # a refusal could not have leaked: it makes no bound smaller


@pytest.mark.parametrize(
    ("other", "again", "verdict"),
    [
        (Reply(200, cached_tokens=0), Reply(200, cached_tokens=64), Verdict.OK),
        (Reply(200, cached_tokens=64), Reply(200, cached_tokens=64), Verdict.LEAK),
        (Reply(200, cached_tokens=64), Reply(0), Verdict.LEAK),
        (Reply(200, cached_tokens=0), Reply(200, cached_tokens=0), Verdict.UNVERIFIABLE),
        (Reply(200), Reply(200), Verdict.UNVERIFIABLE),
        (Reply(503), Reply(200, cached_tokens=64), Verdict.UNVERIFIABLE),
    ],
)
def test_salt(other, again, verdict):
    assert probe.judge_salt(100, other, again).verdict is verdict


def test_an_abort_that_came_too_late_proves_nothing_but_hides_nothing():
    late = probe.after_no_abort(OK)
    assert (late.verdict, late.needed, late.answered) == (Verdict.UNVERIFIABLE, False, False)
    leak = check(Verdict.LEAK)
    assert probe.after_no_abort(leak) is leak


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ((), Exit.COULD_NOT_RUN),
        ((OK,), Exit.CLEAN),
        ((OK, check(Verdict.UNVERIFIABLE)), Exit.CLEAN),
        ((OK, check(Verdict.UNVERIFIABLE, needed=True)), Exit.COULD_NOT_RUN),
        ((OK, check(Verdict.UNVERIFIABLE, needed=True), check(Verdict.LEAK)), Exit.FAULT),
        ((OK, check(Verdict.MISMATCH)), Exit.FAULT),
    ],
)
def test_exit(checks, code):
    assert Report(checks).exit is code


def test_the_bound_is_the_rule_of_three_over_what_could_be_seen():
    hundred = (OK,) * 100
    assert Report(hundred, detection=probe.detection("0.5")).bound == pytest.approx(0.06)
    assert Report((OK,), detection=probe.detection("0.5")).bound == 1.0
    unknown = Report(hundred)
    assert unknown.bound is None
    assert "q unknown" in unknown.bound_text
    assert "3.00%" in unknown.bound_text
    faulty = Report((*hundred, check(Verdict.LEAK)), detection=probe.detection("1"))
    assert faulty.bound is None
    assert "none" in faulty.bound_text
    assert Report((check(Verdict.OK),), detection=probe.detection("1")).bound is None
    assert Report((OK,), detection=probe.detection("0/20")).bound is None


def test_a_measured_share_has_wilsons_interval():
    # Newcombe 1998, table I: 81 of 263, score method: 0.2553 to 0.3662
    assert probe.detection("81/263") == Detection(
        81 / 263, pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5)
    )


@pytest.mark.parametrize("text", ["", "0", "1.1", "-1", "nan", "3/2", "1/0", "-1/4", "a/b", "1/"])
def test_no_share(text):
    with pytest.raises(ValueError):  # noqa: PT011 - argparse words it
        probe.detection(text)


def test_an_answer_is_read():
    body = {
        "choices": [{"text": "one", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}},
    }
    read = probe.read_reply(200, json.dumps(body).encode(), too_long=False)
    assert read == Reply(200, "one", "length", 7, 3)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"usage":{"prompt_tokens":"7"}}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_an_answer_that_cannot_be_read_is_no_answer(body):
    read = probe.read_reply(200, body, too_long=False)
    assert read == Reply(200)
    assert probe.judge_within("within", 100, read, ()).verdict is Verdict.MISMATCH


@pytest.mark.parametrize(
    ("counted", "found", "verdict"),
    [
        (100, (), Verdict.OK),
        (101, (), Verdict.LEAK),
        (99, (), Verdict.MISMATCH),
        (100, FOREIGN, Verdict.LEAK),
    ],
)
def test_two_at_once(counted, found, verdict):
    reply = Reply(200, "words", "stop", prompt_tokens=counted)
    judged = probe.judge_together(100, 101, reply, found)
    assert judged.verdict is verdict
    assert judged.answered is (verdict is Verdict.OK)


def test_a_quick_plan_asks_at_the_limit_and_over_it():
    assert probe.lengths(1017, 4096, 1024, quick=True) == (1017, 1018)


def test_clean_answers_exclude_a_leak_rate():
    assert probe.leak_bound(0, Detection(1, 1, 1)) is None
    assert probe.leak_bound(300, Detection(0.5, 0.5, 0.5)) == pytest.approx(0.02)
    assert probe.leak_bound(1, Detection(0.5, 0.5, 0.5)) == 1.0
