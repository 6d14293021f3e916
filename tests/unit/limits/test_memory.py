from __future__ import annotations

import asyncio

import pytest

from gateway.limits.base import Charge, Concurrency, Lease, LimitKey, Refused, Unit, Used
from gateway.limits.gcra import Quota
from gateway.limits.memory import MemoryLimiter


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> MemoryLimiter:
    return MemoryLimiter(clock)


def requests(limit: int = 5, tenant: str = "t", *, shadow: bool = False) -> Charge:
    key = LimitKey(tenant, "requests per minute")
    return Charge(key, Unit.REQUESTS, Quota(limit, 60.0, limit), 1, shadow)


def tokens(cost: int, limit: int = 100, tenant: str = "t", *, shadow: bool = False) -> Charge:
    key = LimitKey(tenant, "tokens per minute")
    return Charge(key, Unit.TOKENS, Quota(limit, 60.0, limit), cost, shadow)


def slot(limit: int = 1, tenant: str = "t", *, shadow: bool = False) -> Charge:
    key = LimitKey(tenant, "concurrent requests")
    return Charge(key, Unit.SLOTS, Concurrency(limit), 1, shadow)


async def taken(limiter: MemoryLimiter, *charges: Charge) -> Lease:
    outcome = await limiter.reserve(charges)
    assert not isinstance(outcome, Refused)
    return outcome


async def refused(limiter: MemoryLimiter, *charges: Charge) -> Refused:
    outcome = await limiter.reserve(charges)
    assert isinstance(outcome, Refused)
    return outcome


async def remaining(limiter: MemoryLimiter, charge: Charge) -> int:
    """What is left, asked in a way that changes nothing."""
    lease = await taken(limiter, charge)
    left = lease.decisions[charge].remaining + charge.cost
    await lease.release()
    return left


async def test_nothing_to_charge_is_always_taken(limiter: MemoryLimiter) -> None:
    lease = await taken(limiter)
    await lease.settle(Used(10, 0))
    assert lease.decisions == {}


async def test_row_27_concurrent_calls_cannot_pass_the_limit_together(
    limiter: MemoryLimiter,
) -> None:
    outcomes = await asyncio.gather(*(limiter.reserve([requests(5)]) for _ in range(50)))
    assert sum(not isinstance(outcome, Refused) for outcome in outcomes) == 5


async def test_row_32_a_call_refused_by_one_quota_uses_no_other(limiter: MemoryLimiter) -> None:
    first = await taken(limiter, requests(2), slot())
    for _ in range(5):
        assert (await refused(limiter, requests(2), slot())).which == slot()
    await first.settle(Used(0, 0))
    await taken(limiter, requests(2), slot())


async def test_a_refusal_tells_every_quota_as_it_stands(limiter: MemoryLimiter) -> None:
    await taken(limiter, requests(5), tokens(90))
    outcome = await refused(limiter, requests(5), tokens(20))
    assert outcome.which == tokens(20)
    assert outcome.decision == outcome.decisions[tokens(20)]
    assert (outcome.decision.limit, outcome.decision.remaining) == (100, 10)
    assert outcome.decision.retry_after == pytest.approx(6.0, abs=0.002)
    assert outcome.decisions[requests(5)].remaining == 4


async def test_the_refusal_to_wait_longest_for_is_told(limiter: MemoryLimiter) -> None:
    await taken(limiter, requests(1), tokens(100))
    assert (await refused(limiter, requests(1), tokens(1))).which == requests(1)
    assert (await refused(limiter, requests(1), tokens(101))).which == tokens(101)  # impossible


async def test_the_wait_that_is_told_is_enough(limiter: MemoryLimiter, clock: Clock) -> None:
    await taken(limiter, requests(1), tokens(100))
    wait = (await refused(limiter, requests(1), tokens(1))).decision.retry_after
    assert wait is not None
    clock.now += wait
    await taken(limiter, requests(1), tokens(1))


async def test_settling_charges_what_was_used(limiter: MemoryLimiter) -> None:
    lease = await taken(limiter, requests(5), tokens(80))
    await lease.settle(Used(30, 0))
    assert await remaining(limiter, tokens(1)) == 70
    assert await remaining(limiter, requests(5)) == 4


async def test_settling_more_than_reserved_leaves_a_debt(
    limiter: MemoryLimiter, clock: Clock
) -> None:
    await (await taken(limiter, tokens(10))).settle(Used(150, 0))
    assert (await refused(limiter, tokens(1))).decision.remaining == 0
    clock.now += 31.0
    await taken(limiter, tokens(1))


async def test_row_34_a_released_call_leaves_no_trace(limiter: MemoryLimiter) -> None:
    for _ in range(100):
        lease = await taken(limiter, requests(5), tokens(100), slot())
        await lease.release()
    assert await remaining(limiter, requests(5)) == 5
    assert await remaining(limiter, tokens(1)) == 100


@pytest.mark.parametrize("first", ["settle", "release"])
async def test_row_34_a_lease_ends_once(limiter: MemoryLimiter, first: str) -> None:
    await taken(limiter, tokens(40))  # so that a second refund would show
    lease = await taken(limiter, requests(5), tokens(50), slot(2))
    await (lease.settle(Used(20, 0)) if first == "settle" else lease.release())
    left = await remaining(limiter, tokens(1))
    for _ in range(3):
        await lease.release()
        await lease.settle(Used(0, 0))
    assert await remaining(limiter, tokens(1)) == left
    assert left == (40 if first == "settle" else 60)


async def test_row_33_a_slot_comes_back_however_the_call_ends(limiter: MemoryLimiter) -> None:
    for end in ("settle", "release"):
        leases = [await taken(limiter, slot(4)) for _ in range(4)]
        assert (await refused(limiter, slot(4))).decision.retry_after == 1.0
        for lease in leases:
            await (lease.settle(Used(1, 0)) if end == "settle" else lease.release())
    assert len(limiter) == 0


async def test_row_33_a_late_release_frees_no_one_elses_slot(limiter: MemoryLimiter) -> None:
    early = await taken(limiter, slot())
    await early.release()
    await taken(limiter, slot())
    await early.release()
    await refused(limiter, slot())


async def test_slots_are_told_with_what_is_left(limiter: MemoryLimiter) -> None:
    lease = await taken(limiter, slot(3))
    assert (lease.decisions[slot(3)].limit, lease.decisions[slot(3)].remaining) == (3, 2)
    await taken(limiter, slot(3))
    await taken(limiter, slot(3))
    assert (await refused(limiter, slot(3))).decision.remaining == 0


async def test_tenants_do_not_see_each_other(limiter: MemoryLimiter) -> None:
    await taken(limiter, requests(1, "a"), slot(1, "a"))
    await taken(limiter, requests(1, "b"), slot(1, "b"))
    await refused(limiter, requests(1, "a"))


async def test_a_shadow_quota_counts_but_never_refuses(limiter: MemoryLimiter) -> None:
    shadowed = requests(2, shadow=True)
    leases = [await taken(limiter, shadowed) for _ in range(5)]
    assert [lease.shadow_refusal for lease in leases] == [None, None, *[shadowed] * 3]
    assert [lease.decisions[shadowed].remaining for lease in leases] == [1, 0, 0, 0, 0]


async def test_what_a_shadow_would_refuse_charges_no_shadow_but_what_is_enforced(
    limiter: MemoryLimiter,
) -> None:
    shadowed, slots = tokens(60, shadow=True), slot(9, shadow=True)
    await taken(limiter, requests(5), shadowed, slots)
    over = await taken(limiter, requests(5), shadowed, slots)
    assert over.shadow_refusal == shadowed
    assert over.decisions[slots].remaining == 8
    await over.settle(Used(1000, 0))  # nothing was taken of the shadow: nothing is settled there
    assert await remaining(limiter, tokens(1)) == 40
    assert await remaining(limiter, requests(5)) == 3


async def test_an_enforced_refusal_takes_nothing_of_a_shadow(limiter: MemoryLimiter) -> None:
    await taken(limiter, requests(1))
    await refused(limiter, requests(1), tokens(60, shadow=True))
    assert await remaining(limiter, tokens(1)) == 100


async def test_an_impossible_shadow_still_lets_the_call_through(limiter: MemoryLimiter) -> None:
    assert (await taken(limiter, tokens(101, shadow=True))).shadow_refusal is not None


async def test_full_buckets_are_forgotten(limiter: MemoryLimiter, clock: Clock) -> None:
    for index in range(1000):
        await (await taken(limiter, requests(5, f"tenant-{index}"))).settle(Used(0, 0))
    assert len(limiter) == 1000
    clock.now += 61.0
    await taken(limiter, requests(5, "now"))
    assert len(limiter) == 1


async def test_buckets_in_use_are_kept(limiter: MemoryLimiter, clock: Clock) -> None:
    day = Charge(LimitKey("t", "tokens per day"), Unit.TOKENS, Quota(100, 86400.0, 100), 100)
    await taken(limiter, day, slot())
    clock.now += 3600.0
    await refused(limiter, day)
    await refused(limiter, slot())


async def test_after_a_reload_the_share_that_was_used_stays_used(limiter: MemoryLimiter) -> None:
    lease = await taken(limiter, tokens(90, limit=100), slot(3))
    assert await remaining(limiter, tokens(1, limit=50)) == 5
    await refused(limiter, slot(1))
    await lease.release()  # what was taken under the old quota is given back as it was taken
    assert await remaining(limiter, tokens(1, limit=50)) == 50


async def test_one_key_twice_is_a_callers_error(limiter: MemoryLimiter) -> None:
    with pytest.raises(ValueError, match="the same key"):
        await limiter.reserve([tokens(1), tokens(2)])


def test_negative_usage_is_a_callers_error() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        Used(1, -1)


@pytest.mark.parametrize(
    ("unit", "left"), [(Unit.TOKENS, 70), (Unit.INPUT, 90), (Unit.OUTPUT, 80), (Unit.REQUESTS, 50)]
)
async def test_each_unit_is_charged_with_its_part(
    limiter: MemoryLimiter, unit: Unit, left: int
) -> None:
    charge = Charge(LimitKey("t", "any"), unit, Quota(100, 60.0, 100), 50)
    await (await taken(limiter, charge)).settle(Used(10, 20))
    assert (await limiter.peek([charge]))[charge].remaining == left
