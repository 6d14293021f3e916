"""The soak's judge: it must see what it is there for. Its rig is tested by a small run of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.soak import answers, judge, plan, rolling, watch
from benchmarks.soak.callers import Ending, Seen, ending, key_of, request_of
from benchmarks.soak.chaos import Ran
from benchmarks.soak.faults import Window
from benchmarks.soak.plan import Kind, Trouble
from benchmarks.soak.wire import Head

DOCUMENTED = frozenset(
    {"400 context_length_exceeded", "500 internal_error", "503 limiter_store_unavailable"}
)

# --- answers ------------------------------------------------------------------------------------

MINE, OTHER = "qz" + "0" * 24, "qz" + "1" * 24
PIECES = answers.pieces_of(MINE, 3)


def test_an_answer_is_whole_by_its_own_word():
    assert answers.is_whole("".join(PIECES), MINE)
    assert not answers.is_whole("".join(PIECES), OTHER)


@pytest.mark.parametrize(
    "pieces",
    [
        PIECES[:-1],
        PIECES[1:],
        PIECES[:2] + PIECES[3:],
        [PIECES[0], PIECES[2], PIECES[1], *PIECES[3:]],
        [*PIECES, "."],
        [PIECES[0].replace("3", "2"), *PIECES[1:]],
        [],
    ],
)
def test_and_is_not_when_anything_is_missing_or_moved(pieces):
    assert not answers.is_whole("".join(pieces), MINE)


def test_anybody_elses_nonce_is_foreign_wherever_it_is():
    assert not answers.foreign(f"a {MINE} b", MINE)
    assert answers.foreign(f"x-header: {OTHER}\r\n\r\n{MINE}", MINE)


STREAM = Head("HTTP/1.1 200 OK", {"content-type": "text/event-stream"})
WHOLE = Head("HTTP/1.1 200 OK", {"content-type": "application/json"})


def event(text="", finish=None):
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


TEXT = b"".join(event(piece) for piece in PIECES)
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        (STREAM, TEXT + event(finish="stop") + DONE, Ending.COMPLETE),
        (STREAM, TEXT + event(finish="stop"), Ending.HOLLOW),
        (STREAM, TEXT + DONE, Ending.HOLLOW),
        (STREAM, event(PIECES[0]) + event(finish="stop") + DONE, Ending.HOLLOW),
        (STREAM, b"", Ending.HOLLOW),
        (STREAM, event(PIECES[0]) + b'data: {"error":{}}\n\n', Ending.CUT),
        (WHOLE, b"", Ending.HOLLOW),
        (WHOLE, b'{"choices":[]}', Ending.HOLLOW),
        (WHOLE, b'{"error":{"code":500}}', Ending.REFUSED),
        (Head("HTTP/1.1 429 Too Many", {}), b"", Ending.REFUSED),
    ],
)
def test_what_http_calls_whole_may_look_complete_and_not_be(head, body, expected):
    assert ending(head, body, MINE) is expected


# --- the timetable ------------------------------------------------------------------------------


def test_a_seed_is_a_timetable():
    assert plan.rounds(1, 50_000) == plan.rounds(1, 50_000) != plan.rounds(2, 50_000)
    assert plan.call(1, 7) == plan.call(1, 7) != plan.call(2, 7)
    assert request_of(plan.call(1, 7)) == request_of(plan.call(1, 7))


@pytest.mark.parametrize("calls", [200, 2000, 50_000])
def test_rounds_hold_every_call_once_and_every_trouble(calls):
    rounds = plan.rounds(5, calls)
    numbers = [number for each in rounds for number in range(each.first, each.last)]
    assert numbers == list(range(calls))
    assert all(each.first <= e.at < each.last for each in rounds for e in each.events)
    assert {event.trouble for each in rounds for event in each.events} == set(Trouble)


def test_calls_are_of_every_kind_and_their_nonces_differ():
    calls = [plan.call(3, number) for number in range(4000)]
    assert {call.kind for call in calls} == set(Kind) == judge.EXPECTED.keys()
    assert len({call.nonce for call in calls}) == 4000


# --- the judge ----------------------------------------------------------------------------------


def call(kind=Kind.HEALTHY, tenant="acme"):
    return replace(plan.call(1, 0), kind=kind, tenant=tenant, leave=None)


def seen(ended=Ending.COMPLETE, *, of=None, began=10.0, **more):
    return Seen(of or call(), ended, began, began + 1.0, status=200, request_id="req_1", **more)


def refused(status, code, **more):
    return replace(seen(Ending.REFUSED, **more), status=status, code=code)


QUIET = watch.Quiet(
    round=0,
    waited=0.1,
    in_flight=0,
    places=0,
    files={"worker 0": 25},
    to_store={"worker 0": 3},
    to_engine={"worker 0": 9},
    tasks={"worker 0": 8},
    series=3,
    labels={"tenant": frozenset({"acme"}), "outcome": frozenset({"complete"})},
    metrics="",
)


def quiet(**more):
    return replace(QUIET, **more)


RECORD = {"request_id": "req_1", "dialect": "d", "backend": "b", "tenant": "t", "outcome": "o"}
LINE = json.dumps({**RECORD, "status": 200}) + "\n"


def samples(*sizes, process="worker 0"):
    return [watch.Sample(float(at), process, 1, size) for at, size in enumerate(sizes)]


def good(**more):
    memory = samples(*[100] * 9) + samples(*[90] * 9, process="supervisor")
    ran = Ran(
        8, [seen()], [], memory, [quiet(), quiet()], {MINE: Kind.HEALTHY}, 900, exit_status=0,
        said="2026-12-01 04:00:00,000 INFO worker 0: up\n", logged=LINE,
    )  # fmt: skip
    return replace(ran, **more)


def broken(ran):
    """The claims that do not hold, but for that of coverage, which no doctored run can meet."""
    claims = judge.judge(ran, DOCUMENTED, long=True)
    assert len(claims) > 12
    return {claim.claim for claim in claims if not claim.held} - {"every fault was there"}


def killed(at):
    return [Window(Trouble.WORKER_KILLED, at, at + 9.0)]


def froze(at):
    return [Window(Trouble.STORE_FROZEN, at, at + 1.0)]


@pytest.mark.parametrize(
    "ran",
    [
        good(),
        good(seen=[refused(400, "context_length_exceeded", of=call(Kind.OVER_LIMIT))]),
        good(seen=[seen(Ending.CUT)], windows=killed(10.5)),
        good(seen=[seen(Ending.UNANSWERED)], windows=killed(10.5)),
        good(seen=[refused(503, "limiter_store_unavailable")], windows=froze(9.5)),
        good(seen=[seen(Ending.LEFT, of=replace(call(), leave=plan.Leave("reading", 0, 1, True)))]),
        good(logged="", windows=killed(11.4)),
    ],
)
def test_the_judge_takes_what_is_as_it_must_be(ran):
    assert broken(ran) == set()


FOREIGN = "no text of anybody else's"
HOLLOW = "no answer that looks complete and is not"
UNEXPLAINED = "every outcome is explained by the call or a trouble"
REFUSALS = "every refusal is a documented one"
REACHES = "nothing refused reaches the engine"
PLACES = "all places are back and nothing is in flight after each round"
LOG = "one access record for each request, of one form"
PRIVATE = "no text, key or client's name is logged"
STDERR = "standard error: no traceback, and few lines"
LABELS = "label sets are flat, whatever clients send"


@pytest.mark.parametrize(
    ("ran", "claims"),
    [
        (good(seen=[seen(foreign=True)]), {FOREIGN}),
        (good(seen=[seen(Ending.HOLLOW)]), {HOLLOW, UNEXPLAINED}),
        # Over the limit and answered; cut with no reason, too long after, or told by the dead.
        (good(seen=[seen(of=call(Kind.OVER_LIMIT))]), {UNEXPLAINED}),
        (good(seen=[seen(Ending.CUT)]), {UNEXPLAINED}),
        (good(seen=[seen(Ending.CUT)], windows=killed(5.0)), {UNEXPLAINED}),
        (good(seen=[seen(Ending.CUT, told=True)], windows=killed(10.5)), {UNEXPLAINED}),
        (good(seen=[seen(Ending.LEFT)]), {UNEXPLAINED}),
        (good(seen=[refused(503, "limiter_store_unavailable")]), {UNEXPLAINED}),
        (good(seen=[refused(500, "internal_error")]), {REFUSALS, UNEXPLAINED}),
        (good(seen=[refused(418, "teapot")]), {REFUSALS, UNEXPLAINED}),
        (good(reached={MINE: Kind.OVER_LIMIT}), {REACHES}),
        (good(most_tokens=plan.LIMIT_TOKENS + 1), {REACHES}),
        (good(strangers=1), {REACHES}),
        (good(quiets=[quiet(), quiet(places=1)]), {PLACES}),
        (good(quiets=[quiet(), quiet(in_flight=1)]), {PLACES}),
        (
            good(quiets=[quiet(), quiet(files={"worker 0": 40})]),
            {"open files but for kept connections are constant in quiet phases"},
        ),
        (
            good(quiets=[quiet(), quiet(tasks={"worker 0": 30})]),
            {"asyncio tasks are constant in quiet phases"},
        ),
        (
            good(quiets=[quiet(to_store={"worker 0": 35})]),
            {"kept connections to the store are bounded"},
        ),
        (good(quiets=[quiet(), quiet(labels={"tenant": frozenset({"acme", "x"})})]), {LABELS}),
        (
            good(quiets=[quiet(labels={"outcome": frozenset({plan.CLIENTS_MARK})})]),
            {LABELS},
        ),
        (
            good(samples=samples(*range(100, 118)) + samples(90, 90, 90, process="supervisor")),
            {"memory of worker 0 is flat"},
        ),
        (good(logged=LINE * 2), {LOG}),
        (good(logged=""), {LOG}),
        (good(logged="", windows=killed(50.0)), {LOG}),
        (good(logged=LINE.replace('"o"', f'"{key_of("acme")}"')), {PRIVATE}),
        (good(logged=LINE.replace('"o"', f'"{MINE}"')), {PRIVATE}),
        (good(said="Traceback (most recent call last):\n"), {STDERR}),
        (good(said="2026-12-01 04:00:00 ERROR worker 0: task open failed: X\n"), {STDERR}),
        (good(said="2026-12-01 04:00:00 INFO worker 0: again\n" * 100), {STDERR}),
        (good(exit_status=-9), {"it drains and exits with 0 at the end"}),
    ],
)
def test_the_judge_sees(ran, claims):
    assert broken(ran) == claims


def test_a_long_run_without_a_fault_proves_nothing():
    claims = judge.judge(good(), DOCUMENTED, long=True)
    assert [claim.claim for claim in claims if not claim.held] == ["every fault was there"]


def test_documented_outcomes_are_read_from_the_page():
    page = "| `not_found` | 404 | no such endpoint |\n| other | 1 | x |\n"
    assert judge.documented_outcomes(page) == {"404 not_found"}


# --- restarts -----------------------------------------------------------------------------------


def rolled(**more):
    whole = rolling.Rolled([seen()] * 9, instances=1, workers=1, statuses=[0], drains=[1.0])
    return {claim.claim for claim in rolling.judge(replace(whole, **more)) if not claim.held}


def test_restarts_cut_nothing_or_are_told():
    assert rolled() == set()
    assert len(rolled(seen=[*[seen()] * 9, seen(Ending.CUT)])) == 2
    assert len(rolled(seen=[*[seen()] * 9, seen(Ending.UNANSWERED)])) == 1
    assert len(rolled(statuses=[1])) == 1
    assert len(rolled(cut_off=1)) == 1
    assert len(rolled(seen=[])) == 1  # nobody called: nothing was shown
