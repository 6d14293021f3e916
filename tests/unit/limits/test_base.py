from __future__ import annotations

import pytest

from gateway.limits.base import Charge, Concurrency, LimitKey, Unit, Unlimited, Used


def test_row_40_names_that_would_collide_in_one_text_are_different_keys() -> None:
    pairs = [("a:b", "c"), ("a", "b:c"), ("A", "c"), ("a", "c"), ("\u00e9", "c"), ("e\u0301", "c")]
    assert len({LimitKey(*pair) for pair in pairs}) == len(pairs)


def test_a_charge_can_be_looked_up() -> None:
    charge = Charge(LimitKey("t", "slots"), Unit.SLOTS, Concurrency(1), 1)
    assert {charge: 1}[Charge(LimitKey("t", "slots"), Unit.SLOTS, Concurrency(1), 1)] == 1


def test_negative_usage_is_a_callers_error() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        Used(1, -1)


async def test_an_unlimited_lease_may_be_ended_as_any() -> None:
    lease = Unlimited()
    await lease.settle(Used(1, 1))
    await lease.release()
    assert lease.decisions == {}
    assert lease.shadow_refusal is None
