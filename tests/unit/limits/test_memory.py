"""What only memory does; what it shares with every store is in tests/conformance."""

from __future__ import annotations

from gateway.limits.base import Charge, Concurrency, LimitKey, Refused, Unit, Used
from gateway.limits.gcra import Quota
from gateway.limits.memory import MemoryLimiter


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def requests(tenant: str) -> Charge:
    return Charge(LimitKey(tenant, "requests"), Unit.REQUESTS, Quota(5, 60.0, 5), 1)


def slot(tenant: str) -> Charge:
    return Charge(LimitKey(tenant, "slots"), Unit.SLOTS, Concurrency(1), 1)


async def test_full_buckets_are_forgotten() -> None:
    clock = Clock()
    limiter = MemoryLimiter(clock)
    for index in range(1000):
        lease = await limiter.reserve([requests(f"tenant-{index}")])
        assert not isinstance(lease, Refused)
        await lease.settle(Used(0, 0))
    assert len(limiter) == 1000
    clock.now += 61.0
    await limiter.reserve([requests("now")])
    assert len(limiter) == 1


async def test_buckets_and_slots_in_use_are_remembered() -> None:
    clock = Clock()
    limiter = MemoryLimiter(clock)
    day = Charge(LimitKey("t", "tokens per day"), Unit.TOKENS, Quota(100, 86400.0, 100), 100)
    await limiter.reserve([day, slot("t")])
    clock.now += 3600.0
    assert isinstance(await limiter.reserve([day]), Refused)
    assert isinstance(await limiter.reserve([slot("t")]), Refused)
    assert len(limiter) == 2


async def test_row_33_slots_given_back_leave_nothing() -> None:
    limiter = MemoryLimiter(Clock())
    lease = await limiter.reserve([slot("t")])
    assert not isinstance(lease, Refused)
    await lease.release()
    assert len(limiter) == 0
    await limiter.close()
