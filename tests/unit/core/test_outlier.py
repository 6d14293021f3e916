"""Ejection: who is left out, for how long, and what brings it back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.outlier import (
    Failure,
    Health,
    Rules,
    State,
    answered,
    completed,
    failed,
    one_left,
)

RULES = Rules(consecutive_failures=3, base_time=10.0, max_time=35.0)
ROUNDING = 1e-6  # seconds: sums of floats


def failing(health, times, now=0.0, rules=RULES, **more):
    more = {"trial": False, "may_eject": True, **more}
    for _ in range(times):
        health = failed(health, Failure.CONNECT, now, rules, **more)
    return health


def test_failures_in_a_row_eject_and_one_fewer_do_not():
    assert failing(Health(), 2).state(0.0) is State.IN_SERVICE
    out = failing(Health(), 3)
    assert (out.state(0.0), out.until, out.reason) == (State.EJECTED, 10.0, Failure.CONNECT)


def test_a_whole_answer_ends_a_row_and_its_beginning_does_not():
    row = failing(Health(), 2)
    assert failing(completed(row), 2).state(0.0) is State.IN_SERVICE
    assert failing(answered(row, 0.0, trial=False), 1).state(0.0) is State.EJECTED


def test_half_open_after_its_time_and_a_trial_decides():
    out = failing(Health(), 3)
    assert out.state(9.999) is State.EJECTED
    assert out.state(10.0) is State.HALF_OPEN
    back = answered(out, 11.0, trial=True)
    assert (back.state(11.0), back.failures) == (State.IN_SERVICE, 0)
    again = failed(out, Failure.STATUS, 11.0, RULES, trial=True, may_eject=False)
    assert (again.state(11.0), again.until, again.reason) == (State.EJECTED, 31.0, Failure.STATUS)


def test_what_began_before_an_ejection_changes_nothing():
    out = failing(Health(), 3)
    for now in (5.0, 15.0):
        assert failing(out, 9, now) == out
        assert answered(out, now, trial=False) == completed(out) == out


def test_ejections_grow_up_to_the_most_and_are_forgotten_in_service():
    health, lengths = failing(Health(), 3), []
    for _ in range(4):
        lengths.append(health.until - health.since)
        health = failed(health, Failure.BROKE, health.until, RULES, trial=True, may_eject=True)
    assert lengths == [10.0, 20.0, 30.0, 35.0]
    back = answered(health, 1000.0, trial=True)
    for served, expected in ((0.0, 35.0), (10.0, 35.0), (30.0, 30.0), (1000.0, 10.0)):
        now = 1000.0 + served
        assert failing(back, 3, now).until == now + expected


def test_where_nobody_is_left_failures_count_on_and_the_next_one_ejects():
    held = failing(Health(), 7, may_eject=False)
    assert (held.state(0.0), held.failures) == (State.IN_SERVICE, 7)
    assert failing(held, 1).state(0.0) is State.EJECTED


def test_no_number_of_failures_ejects_where_ejection_is_off():
    never = replace(RULES, consecutive_failures=0)
    assert failing(Health(), 100, rules=never).state(0.0) is State.IN_SERVICE


@pytest.mark.parametrize(
    ("names", "out", "share", "may"),
    [
        ("a", "", 1.0, False),  # its model's only one
        ("ab", "", 0.5, True),
        ("ab", "b", 1.0, False),  # the last one
        ("ab", "", 0.4, False),
        ("abc", "b", 0.5, False),
        ("abcd", "b", 0.5, True),
        ("abcd", "bc", 1.0, True),
    ],
)
def test_one_is_always_left_and_no_more_than_the_share_are_out(names, out, share, may):
    assert one_left("a", {"m": set(names)}, set(out), share) is may


def test_every_model_it_serves_must_keep_one():
    serving = {"wide": set("abcd"), "narrow": {"a"}}
    assert not one_left("a", serving, set(), 1.0)


@pytest.mark.parametrize(("now", "seconds"), [(0.0, 10), (8.5, 2), (9.999, 1), (12.0, 1)])
def test_the_wait_told_is_whole_seconds_and_never_none(now, seconds):
    assert failing(Health(), 3).retry_after(now) == seconds


class Backend(RuleBasedStateMachine):
    """Any order of answers, failures, trials and time: what must hold whatever happens."""

    def __init__(self):
        super().__init__()
        self.health, self.now, self.row = Health(), 0.0, 0

    @rule(seconds=st.floats(0.0, 100.0))
    def wait(self, seconds):
        self.now += seconds

    @rule(failure=st.sampled_from(Failure), may=st.booleans())
    def fail(self, failure, may):
        before = self.health
        self.health = failed(before, failure, self.now, RULES, trial=False, may_eject=may)
        if before.until is not None:
            assert self.health == before
            return
        self.row += 1
        assert (self.health.until is not None) is (may and self.row >= RULES.consecutive_failures)

    @rule()
    def complete(self):
        self.health = completed(self.health)
        if self.health.until is None:
            self.row = 0

    @precondition(lambda self: self.health.state(self.now) is State.HALF_OPEN)
    @rule(passes=st.booleans())
    def try_it(self, passes):
        if passes:
            self.health = answered(self.health, self.now, trial=True)
            assert self.health.state(self.now) is State.IN_SERVICE
        else:
            before = self.health
            self.health = failed(
                before, Failure.TIMEOUT, self.now, RULES, trial=True, may_eject=False
            )
            assert self.health.state(self.now) is State.EJECTED
            least = min(RULES.max_time, before.until - before.since) - ROUNDING
            assert self.health.until - self.now >= least
        self.row = 0

    @invariant()
    def no_ejection_is_longer_than_the_most(self):
        if self.health.until is not None:
            assert 0 < self.health.until - self.health.since <= RULES.max_time + ROUNDING
            self.row = 0


TestAnyOrder = Backend.TestCase
