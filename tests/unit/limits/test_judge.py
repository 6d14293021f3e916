from __future__ import annotations

import pytest

from gateway.limits.base import Charge, Concurrency, LimitKey, Refused, Unit, Used
from gateway.limits.gcra import Quota
from gateway.limits.judge import Taken, check, difference, judge, standing

TEN = Quota(10, 10.0, 10)
SECOND = 10**12  # picoseconds


def bucket(cost: int, name: str = "b", *, shadow: bool = False) -> Charge:
    return Charge(LimitKey("t", name), Unit.TOKENS, TEN, cost, shadow)


def slots(cost: int = 1, *, shadow: bool = False) -> Charge:
    return Charge(LimitKey("t", "s"), Unit.SLOTS, Concurrency(3), cost, shadow)


def test_a_level_with_room_for_the_cost_is_taken() -> None:
    outcome = judge([bucket(4), slots()], [6 * SECOND, 2])
    assert isinstance(outcome, Taken)
    assert outcome.charges == (bucket(4), slots())
    assert [decision.remaining for decision in outcome.decisions.values()] == [0, 0]


@pytest.mark.parametrize(("level", "wait"), [(6 * SECOND + 1, 0.001), (16 * SECOND, 10.001)])
def test_a_level_without_room_is_refused_with_the_wait(level: int, wait: float) -> None:
    outcome = judge([bucket(4), slots()], [level, 2])
    assert isinstance(outcome, Refused)
    assert outcome.which == bucket(4)
    assert outcome.decision.retry_after == wait
    assert outcome.decisions[slots()].remaining == 1


def test_a_refused_slot_is_told_as_it_stands() -> None:
    outcome = judge([slots(2)], [2])
    assert isinstance(outcome, Refused)
    assert (outcome.decision.remaining, outcome.decision.retry_after) == (1, 1.0)


def test_shadows_are_taken_together_or_not_at_all() -> None:
    charges = [bucket(1), bucket(1, "c", shadow=True), slots(shadow=True)]
    outcome = judge(charges, [0, 0, 3])
    assert isinstance(outcome, Taken)
    assert outcome.charges == (bucket(1),)
    assert outcome.shadow_refusal == slots(shadow=True)
    assert [decision.remaining for decision in outcome.decisions.values()] == [9, 10, 0]


def test_standing_asks_nothing() -> None:
    assert standing(bucket(99), 4 * SECOND).remaining == 6
    assert standing(slots(), 3).allowed
    assert not standing(slots(), 4).allowed  # after a reload that gave less


@pytest.mark.parametrize(
    ("unit", "used", "units"),
    [(Unit.TOKENS, Used(1, 2), -2), (Unit.REQUESTS, Used(1, 2), 0), (Unit.OUTPUT, None, -5)],
)
def test_the_difference_to_what_was_reserved(unit: Unit, used: Used | None, units: int) -> None:
    assert difference(Charge(LimitKey("t", "n"), unit, TEN, 5), used) == units


def test_faults_of_the_caller() -> None:
    other = Charge(LimitKey("u", "x"), Unit.TOKENS, TEN, 1)
    for charges in ([bucket(1), bucket(2)], [bucket(1), other], [bucket(-1)]):
        with pytest.raises(ValueError):  # noqa: PT011 - conformance looks at the words
            check(charges)
    check([bucket(1), slots()])
