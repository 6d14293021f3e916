from __future__ import annotations

import pytest

from bucket import peek, step
from gateway.limits.gcra import Decision, Quota, expired, settle

SIX_A_MINUTE = Quota(6, 60.0, 6)  # one every 10 s


def test_a_full_bucket_gives_its_burst_at_once_and_not_one_more() -> None:
    state, remaining = None, []
    for _ in range(6):
        state, decision = step(state, 100.0, 1, SIX_A_MINUTE)
        assert decision.allowed
        remaining.append(decision.remaining)
    assert remaining == [5, 4, 3, 2, 1, 0]
    after, refused = step(state, 100.0, 1, SIX_A_MINUTE)
    assert after == state
    assert refused == Decision(False, 6, 0, reset_after=60.0, retry_after=10.001)


def test_row_39_refused_before_retry_after_and_admitted_after() -> None:
    state, _ = step(None, 0.0, 6, SIX_A_MINUTE)
    _, refused = step(state, 3.0, 2, SIX_A_MINUTE)
    assert refused.retry_after == pytest.approx(17.0, abs=0.002)
    assert not step(state, 3.0 + 16.99, 2, SIX_A_MINUTE)[1].allowed
    assert step(state, 3.0 + refused.retry_after, 2, SIX_A_MINUTE)[1].allowed


def test_row_39_a_cost_over_the_whole_burst_is_impossible_and_never_later() -> None:
    state, decision = step(None, 0.0, 7, SIX_A_MINUTE)
    assert state is None
    assert decision.impossible
    assert decision.retry_after is None
    assert (decision.limit, decision.remaining) == (6, 6)
    assert not step(None, 0.0, 6, SIX_A_MINUTE)[1].impossible


def test_it_refills_evenly_and_never_above_the_burst() -> None:
    state, _ = step(None, 0.0, 6, SIX_A_MINUTE)
    assert [peek(state, now, SIX_A_MINUTE).remaining for now in (0, 9.9, 10, 35, 60, 9999)] == [
        0, 0, 1, 3, 6, 6,
    ]  # fmt: skip


def test_peeking_and_a_cost_of_nothing_take_nothing() -> None:
    state, _ = step(None, 0.0, 4, SIX_A_MINUTE)
    assert step(state, 0.0, 0, SIX_A_MINUTE) == (state, peek(state, 0.0, SIX_A_MINUTE))


def test_a_refund_restores_exactly_what_was_there() -> None:
    before, _ = step(None, 5.0, 2, SIX_A_MINUTE)
    reserved, _ = step(before, 6.0, 3, SIX_A_MINUTE)
    assert settle(reserved, 7.0, -3, SIX_A_MINUTE) == before


def test_a_refund_never_overfills() -> None:
    state, _ = step(None, 0.0, 3, SIX_A_MINUTE)
    state = settle(state, 1000.0, -3, SIX_A_MINUTE)
    assert peek(state, 1000.0, SIX_A_MINUTE).remaining == 6
    assert settle(None, 0.0, -3, SIX_A_MINUTE) is None


def test_a_charge_afterwards_may_leave_a_debt_that_blocks_until_refilled() -> None:
    state = settle(None, 0.0, 8, SIX_A_MINUTE)
    told = peek(state, 0.0, SIX_A_MINUTE)
    assert (told.remaining, told.reset_after) == (0, 80.0)
    assert not step(state, 19.9, 0, SIX_A_MINUTE)[1].allowed
    assert step(state, 20.0, 0, SIX_A_MINUTE)[1].allowed
    assert not step(state, 29.9, 1, SIX_A_MINUTE)[1].allowed
    assert step(state, 30.0, 1, SIX_A_MINUTE)[1].allowed


def test_a_charge_on_a_bucket_that_was_full_counts_from_now() -> None:
    old, _ = step(None, 0.0, 1, SIX_A_MINUTE)
    assert peek(settle(old, 500.0, 2, SIX_A_MINUTE), 500.0, SIX_A_MINUTE).remaining == 4


def test_a_bucket_may_be_forgotten_once_it_is_full() -> None:
    state, _ = step(None, 0.0, 1, SIX_A_MINUTE)
    assert state is not None
    assert not expired(state, 9.99)
    assert expired(state, 10.0)


@pytest.mark.parametrize(("amount", "period", "burst"), [(0, 60, 1), (1, 0, 1), (1, 60, 0)])
def test_a_quota_must_be_positive(amount: int, period: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Quota(amount, period, burst)


def test_a_cost_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        step(None, 0.0, -1, SIX_A_MINUTE)


@pytest.mark.parametrize("amount", [7, 600, 999_983, 10**6, 10**9, 6 * 10**9])
def test_the_rate_is_never_above_and_hardly_below_what_was_asked(amount: int) -> None:
    quota = Quota(amount, 60.0, amount)
    full_again_after = peek(step(None, 0.0, amount, quota)[0], 0.0, quota).reset_after
    assert 60.0 <= full_again_after < 60.0 * 1.0001
