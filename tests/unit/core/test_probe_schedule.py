"""When a backend is probed, and when clean probes release it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.probe import Check, Detection, Report, leak_bound
from gateway.core.probe_schedule import (
    Due,
    History,
    Occasion,
    Present,
    Ran,
    Release,
    Result,
    Schedule,
    after,
    due,
    held,
    may_release,
    result_of,
    vouched,
    wanted,
)
from gateway.core.quarantine import State
from gateway.types import Verdict

ALL = tuple(occasion for occasion in Occasion if occasion is not Occasion.CANARY)
RULE = Release(after=2, bound=0.1, detection=Detection(1.0, 1.0, 1.0))  # 30 clean answers
SCHEDULE = Schedule(when=ALL, every=1000.0, retry=100.0, release=RULE)
SERVING = Present("e1", State.SERVING, 0.0, 0)
OUT = Present("e1", State.QUARANTINED, 50.0, 0)
CLEAN = Ran(Result.CLEAN, "e1", quick=False, answers=10)
FAULT = Ran(Result.FAULT, "e1", quick=False)


def runs(*ends: Ran, present: Present = OUT, begun: float = 100.0) -> History:
    history = History()
    for step, ran in enumerate(ends):
        history = after(history, ran, Occasion.QUARANTINE, begun + step, present)
    return history


# --- when --------------------------------------------------------------------------------------


def test_nothing_is_due_before_anybody_told_what_it_is():
    assert due(SCHEDULE, History(), 0.0, replace(SERVING, engine="")) is None


@pytest.mark.parametrize(
    ("when", "occasion"),
    [
        (("start",), Occasion.START),
        (("serving",), Occasion.SERVING),
        (("change",), None),
        (("quarantine",), None),
        ((), None),
    ],
)
def test_first_seen_while_it_serves(when, occasion):
    schedule = replace(SCHEDULE, when=[Occasion(word) for word in when])
    assert wanted(schedule, History(), 0.0, SERVING) is occasion


def test_the_default_leaves_a_backend_that_serves_alone():
    assert due(Schedule(), History(), 1e9, SERVING) is None
    assert due(Schedule(), History(), 0.0, OUT) == Due(Occasion.QUARANTINE, quick=False)


def test_the_plan_is_quick_only_while_it_serves():
    assert due(SCHEDULE, History(), 0.0, SERVING) == Due(Occasion.START, quick=True)
    assert due(replace(SCHEDULE, quick=False), History(), 0.0, SERVING).quick is False
    suspect = replace(OUT, state=State.SUSPECT)
    assert due(SCHEDULE, History(), 0.0, suspect) == Due(Occasion.QUARANTINE, quick=False)


@pytest.mark.parametrize(("load", "at_load", "runs"), [(1, 0, False), (2, 2, True), (3, 2, False)])
def test_it_waits_for_the_load_to_fall(load, at_load, runs):
    schedule = replace(SCHEDULE, at_load=at_load)
    assert (due(schedule, History(), 0.0, replace(SERVING, load=load)) is not None) is runs


def test_another_engine_is_probed_at_once_and_once():
    history = runs(CLEAN, present=SERVING)
    assert wanted(SCHEDULE, history, 101.0, SERVING) is None
    other = replace(SERVING, engine="e2")
    assert wanted(SCHEDULE, history, 101.0, other) is Occasion.CHANGE
    history = after(history, replace(CLEAN, engine="e2"), Occasion.CHANGE, 102.0, other)
    assert wanted(SCHEDULE, history, 103.0, other) is None
    assert wanted(SCHEDULE, history, 1102.0, other) is Occasion.SERVING


def test_a_quarantine_is_probed_at_once_and_then_by_retries():
    history = runs(CLEAN, present=SERVING)
    assert wanted(SCHEDULE, history, 101.0, OUT) is Occasion.QUARANTINE
    history = after(history, FAULT, Occasion.QUARANTINE, 101.0, OUT)
    assert wanted(SCHEDULE, history, 200.9, OUT) is None
    assert wanted(SCHEDULE, history, 201.0, OUT) is Occasion.QUARANTINE
    anew = replace(OUT, since=150.0)  # released, and found at fault again
    assert wanted(SCHEDULE, history, 150.0, anew) is Occasion.QUARANTINE


def test_faults_are_tried_ever_more_rarely_down_to_every():
    pauses = []
    for count in range(1, 8):
        history = runs(*[FAULT] * count, begun=0.0)
        ended = count - 1.0
        steps = range(0, 2000, 100)
        pauses.append(next(s for s in steps if wanted(SCHEDULE, history, ended + s, OUT)))
    assert pauses == [100, 200, 400, 800, 1000, 1000, 1000]


@pytest.mark.parametrize("result", [Result.COULD_NOT_RUN, Result.BROKEN_OFF])
def test_what_came_to_no_verdict_is_tried_again_on_the_same_occasion(result):
    history = runs(Ran(result, "e1", quick=True), present=SERVING)
    assert wanted(SCHEDULE, history, 199.0, SERVING) is None
    assert wanted(SCHEDULE, history, 200.0, SERVING) is Occasion.START


# --- canaries ----------------------------------------------------------------------------------


def test_a_canary_waits_for_a_clean_full_probe_of_these_processes():
    canary = replace(SCHEDULE, canary=True)
    assert held(canary, History(), "e1")
    assert held(canary, runs(FAULT), "e1")
    assert held(canary, runs(replace(CLEAN, quick=True)), "e1")
    assert not held(canary, runs(CLEAN), "e1")
    assert held(canary, runs(CLEAN), "e2")
    assert held(canary, runs(CLEAN), "")
    assert held(canary, runs(CLEAN, FAULT), "e1")
    assert not held(canary, vouched(runs(FAULT), "e1"), "e1")
    assert not held(SCHEDULE, History(), "e1")


def test_a_canary_is_probed_whatever_the_occasions():
    canary = replace(SCHEDULE, canary=True, when=())
    assert due(canary, History(), 0.0, SERVING) == Due(Occasion.CANARY, quick=False)
    assert due(canary, runs(CLEAN, present=SERVING), 1e9, SERVING) is None


# --- release -----------------------------------------------------------------------------------


def test_release_needs_enough_probes_and_enough_answers():
    assert not may_release(SCHEDULE, runs(CLEAN), OUT)
    assert not may_release(SCHEDULE, runs(CLEAN, CLEAN), OUT)  # 20 answers exclude 15 %
    assert may_release(SCHEDULE, runs(CLEAN, CLEAN, CLEAN), OUT)
    many = replace(CLEAN, answers=500)
    assert not may_release(SCHEDULE, runs(many), OUT)  # one probe, whatever it held
    assert may_release(SCHEDULE, runs(many, many), OUT)


def test_release_needs_the_rule_and_a_quarantine():
    clean = runs(CLEAN, CLEAN, CLEAN)
    assert not may_release(replace(SCHEDULE, release=None), clean, OUT)
    assert not may_release(SCHEDULE, clean, replace(OUT, state=State.SERVING))


def test_a_detection_of_nothing_releases_nothing():
    blind = replace(RULE, detection=Detection(0.1, 0.0, 0.3))
    assert not may_release(replace(SCHEDULE, release=blind), runs(*[CLEAN] * 9), OUT)


@pytest.mark.parametrize(
    "between",
    [FAULT, Ran(Result.COULD_NOT_RUN, "e1", quick=False)],
    ids=["fault", "could_not_run"],
)
def test_anything_but_clean_begins_anew(between):
    history = runs(CLEAN, CLEAN, between, CLEAN)
    assert (history.streak, history.answers) == (1, 10)
    assert not may_release(SCHEDULE, history, OUT)


def test_a_run_that_gave_way_neither_counts_nor_resets():
    history = runs(CLEAN, CLEAN, Ran(Result.BROKEN_OFF, "e1", quick=False), CLEAN)
    assert may_release(SCHEDULE, history, OUT)


def test_a_quick_probe_carries_no_count_over():
    quick = replace(CLEAN, quick=True)
    for present, ran in ((replace(OUT, since=300.0), quick), (OUT, replace(quick, engine="e2"))):
        there = replace(present, engine=ran.engine)
        history = after(runs(CLEAN, CLEAN), ran, Occasion.QUARANTINE, 300.0, there)
        assert (history.streak, history.answers) == (0, 0)
    assert runs(CLEAN, quick, CLEAN).answers == 20


def test_a_quick_probe_counts_nothing():
    assert runs(*[replace(CLEAN, quick=True)] * 9).answers == 0


def test_probes_before_the_quarantine_do_not_count():
    history = runs(CLEAN, CLEAN, CLEAN)
    anew = replace(OUT, since=300.0)
    assert not may_release(SCHEDULE, history, anew)
    history = after(history, CLEAN, Occasion.QUARANTINE, 301.0, anew)
    assert (history.streak, history.answers) == (1, 10)


def test_probes_of_other_processes_do_not_count():
    history = runs(CLEAN, CLEAN, CLEAN)
    assert not may_release(SCHEDULE, history, replace(OUT, engine="e2"))
    history = after(history, CLEAN, Occasion.QUARANTINE, 301.0, replace(OUT, engine="e2"))
    assert history.streak == 0  # it became another one while it was probed


RANS = st.builds(
    Ran,
    st.sampled_from([*[Result.CLEAN] * 5, *Result]),
    st.sampled_from(["e1", "e2"]),
    quick=st.booleans(),
    answers=st.integers(0, 40),
)
PRESENTS = st.builds(
    Present,
    st.sampled_from(["e1", "e2"]),
    st.sampled_from([State.SUSPECT, State.QUARANTINED]),
    st.sampled_from([50.0, 60.0]),
    st.just(0),
)


@given(st.lists(st.tuples(RANS, PRESENTS), max_size=12))
def test_release_follows_from_the_last_runs_alone(story):
    """By the rule as it reads: the last runs, told from the end."""
    history = History()
    for step, (ran, present) in enumerate(story):
        history = after(history, ran, Occasion.QUARANTINE, float(step), present)
    present = story[-1][1] if story else OUT
    counted = []
    for ran, then in reversed(story):
        if ran.result is Result.BROKEN_OFF:
            continue
        if ran.result is not Result.CLEAN:
            break
        if ran.engine != then.engine or (then.engine, then.since) != (
            present.engine,
            present.since,
        ):
            break
        if not ran.quick:
            counted.append(ran.answers)
    bound = leak_bound(sum(counted), RULE.detection)
    earned = len(counted) >= RULE.after and bound is not None and bound <= RULE.bound
    assert may_release(SCHEDULE, history, present) is earned


@given(st.lists(st.tuples(RANS, PRESENTS), max_size=12), PRESENTS, st.floats(0, 1e6))
def test_what_is_due_is_wanted_and_within_the_load(story, present, now):
    history = History()
    for step, (ran, then) in enumerate(story):
        history = after(history, ran, Occasion.QUARANTINE, float(step), then)
    found = due(SCHEDULE, history, now, present)
    assert due(SCHEDULE, history, now, replace(present, load=1)) is None
    assert (found.occasion if found else None) == wanted(SCHEDULE, history, now, present)
    if found is not None:  # having run, it is not due again at once
        later = after(
            history, Ran(Result.FAULT, present.engine, quick=False), found.occasion, now, present
        )
        assert due(SCHEDULE, later, now, present) is None


@pytest.mark.parametrize(
    ("verdicts", "result"),
    [
        ((), Result.COULD_NOT_RUN),
        ((Verdict.OK,), Result.CLEAN),
        ((Verdict.OK, Verdict.UNVERIFIABLE), Result.COULD_NOT_RUN),
        ((Verdict.UNVERIFIABLE, Verdict.LEAK), Result.FAULT),
        ((Verdict.OK, Verdict.MISMATCH), Result.FAULT),
    ],
)
def test_results_are_those_of_reports(verdicts, result):
    checks = tuple(Check("any", verdict, "", needed=True) for verdict in verdicts)
    assert result_of(Report(checks)) is result
