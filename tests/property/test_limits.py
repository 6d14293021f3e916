"""What must hold of the limits for every sequence of requests."""

from __future__ import annotations

from math import floor

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bucket import peek, step
from coroutines import finished
from gateway.limits.base import Charge, Concurrency, Lease, LimitKey, Refused, Unit, Used
from gateway.limits.gcra import Quota, Tat, settle
from gateway.limits.memory import MemoryLimiter

quotas = st.builds(
    Quota,
    amount=st.integers(1, 10**7),
    period=st.sampled_from([1.0, 60.0, 86400.0]),
    burst=st.integers(1, 10**6),
)
starts = st.floats(0, 1e7, allow_nan=False)
gaps = st.floats(0, 100, allow_nan=False)
asks = st.lists(st.tuples(gaps, st.integers(0, 2 * 10**5)), min_size=1, max_size=40)
CLOCK_STEP = 2e-9  # of a float of seconds near 1e7


def admitted(
    quota: Quota, start: float, sequence: list[tuple[float, int]]
) -> list[tuple[float, int]]:
    """When, and how much, of a sequence of (pause, cost) is let through."""
    state: Tat | None = None
    now, through = start, []
    for pause, cost in sequence:
        now += pause
        state, decision = step(state, now, cost, quota)
        assert 0 <= decision.remaining <= quota.burst
        assert decision.reset_after >= 0
        if decision.allowed:
            through.append((now, cost))
    return through


@given(quotas, starts, asks)
def test_no_window_admits_more_than_burst_and_rate(
    quota: Quota, start: float, sequence: list[tuple[float, int]]
) -> None:
    through = admitted(quota, start, sequence)
    for first, (opened, _) in enumerate(through):
        total = 0
        for now, cost in through[first:]:
            total += cost
            refilled = (now - opened + CLOCK_STEP) * quota.amount / quota.period
            assert total <= quota.burst + refilled * (1 + 1e-12)


@given(quotas, starts, asks, st.integers(1, 2 * 10**6))
def test_waiting_as_told_admits_and_is_hardly_longer_than_needed(
    quota: Quota, start: float, sequence: list[tuple[float, int]], cost: int
) -> None:
    state, now = None, start
    for pause, earlier in sequence:
        now += pause
        state, _ = step(state, now, earlier, quota)
    after, decision = step(state, now, cost, quota)
    if decision.allowed:
        return
    assert after == state
    assert decision.impossible is (cost > quota.burst)
    if decision.retry_after is not None:
        assert decision.retry_after > 0
        assert step(state, now + decision.retry_after, cost, quota)[1].allowed
        early = now + decision.retry_after - 0.0011
        assert early < now or not step(state, early, cost, quota)[1].allowed


@given(quotas, starts, st.integers(0, 10**6), gaps)
def test_what_remains_is_what_can_be_taken(
    quota: Quota, start: float, used: int, pause: float
) -> None:
    state, _ = step(None, start, min(used, quota.burst), quota)
    remaining = peek(state, start + pause, quota).remaining
    assert step(state, start + pause, remaining, quota)[1].allowed
    assert not step(state, start + pause, remaining + 1, quota)[1].allowed


@given(quotas, starts, st.integers(0, 10**6), st.integers(0, 10**6), gaps)
def test_reserving_and_settling_equals_charging_what_was_used(
    quota: Quota, start: float, reserved: int, used: int, pause: float
) -> None:
    reserved = min(reserved, quota.burst)
    state, _ = step(None, start, reserved, quota)
    settled = settle(state, start, used - reserved, quota)
    charged = settle(None, start, used, quota)
    later = start + pause
    assert peek(settled, later, quota) == peek(charged, later, quota)


class Books(RuleBasedStateMachine):
    """A limiter under any interleaving of take, settle, release and waiting."""

    TOKENS = Quota(100, 10.0, 100)
    KEYS = (LimitKey("t", "tokens"), LimitKey("t", "slots"))
    SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0
        self.limiter = MemoryLimiter(lambda: self.now)
        self.held: list[tuple[Lease, int]] = []
        self.ended: list[Lease] = []
        self.used = 0
        self.began = self.now

    def charges(self, cost: int) -> tuple[Charge, Charge]:
        tokens, slots = self.KEYS
        return (
            Charge(tokens, Unit.TOKENS, self.TOKENS, cost),
            Charge(slots, Unit.SLOTS, Concurrency(self.SLOTS), 1),
        )

    @rule(cost=st.integers(0, 120))
    def take(self, cost: int) -> None:
        outcome = finished(self.limiter.reserve(self.charges(cost)))
        if isinstance(outcome, Refused):
            assert not outcome.decision.allowed
            assert outcome.decision.impossible is (cost > self.TOKENS.burst)
            assert cost or len(self.held) == self.SLOTS
        else:
            self.held.append((outcome, cost))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        lease, cost = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        used = data.draw(st.integers(0, cost))
        finished(lease.settle(Used(used, 0)))
        self.used += used
        self.ended.append(lease)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        finished(lease.release())
        self.ended.append(lease)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.ended))
        finished(lease.release())
        finished(lease.settle(Used(0, 0)))

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def no_more_slots_than_there_are(self) -> None:
        assert len(self.held) <= self.SLOTS

    @invariant()
    def used_and_reserved_stay_within_burst_and_rate(self) -> None:
        reserved = sum(cost for _, cost in self.held)
        elapsed = self.now - self.began + CLOCK_STEP
        allowance = self.TOKENS.burst + elapsed * self.TOKENS.amount / self.TOKENS.period
        assert self.used + reserved <= allowance * (1 + 1e-12)

    def teardown(self) -> None:
        for lease, _ in self.held:
            finished(lease.release())
        self.now += floor(self.TOKENS.period) * 100
        outcome = finished(self.limiter.reserve(self.charges(self.TOKENS.burst)))
        assert not isinstance(outcome, Refused)


TestBooks = Books.TestCase
