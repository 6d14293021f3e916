from __future__ import annotations

import pytest

from gateway.errors import Kind, Rejection
from gateway.limits.base import Charge, LimitKey, Refused, Unit, Unlimited
from gateway.limits.gcra import Quota
from gateway.limits.memory import MemoryLimiter
from gateway.limits.watch import Outcome, Unwatched, WatchedLimiter
from valkey_server import Watch

ONE = Charge(LimitKey("t", "requests"), Unit.REQUESTS, Quota(1, 60.0, 1), 1)


class Without(MemoryLimiter):
    """A limiter whose store fails."""

    def __init__(self, *, admits: bool) -> None:
        super().__init__(lambda: 0.0)
        self.admits = admits

    async def reserve(self, charges):
        if self.admits:
            return Unlimited()
        raise Rejection(Kind.STORE_UNAVAILABLE, "no")


def ticking():
    now = iter(range(100))
    return lambda: float(next(now))


async def test_what_came_of_each_request_and_after_how_long() -> None:
    watch = Watch()
    limiter = WatchedLimiter(MemoryLimiter(lambda: 0.0), ticking(), watch)
    await limiter.reserve([ONE])
    assert isinstance(await limiter.reserve([ONE]), Refused)
    await limiter.reserve([])
    await WatchedLimiter(Without(admits=True), ticking(), watch).reserve([ONE])
    assert watch.decisions == [
        (Outcome.ADMITTED, 1.0),
        (Outcome.REFUSED, 1.0),
        (Outcome.ADMITTED, 1.0),
        (Outcome.UNCHECKED, 1.0),
    ]
    await limiter.close()


async def test_a_request_refused_for_want_of_a_store_is_one_too() -> None:
    watch = Watch()
    with pytest.raises(Rejection):
        await WatchedLimiter(Without(admits=False), ticking(), watch).reserve([ONE])
    assert watch.decisions == [(Outcome.UNAVAILABLE, 1.0)]


async def test_a_peek_is_no_decision() -> None:
    watch = Watch()
    await WatchedLimiter(MemoryLimiter(lambda: 0.0), ticking(), watch).peek([ONE])
    assert watch.decisions == []


async def test_nobody_need_watch() -> None:
    limiter = WatchedLimiter(MemoryLimiter(lambda: 0.0), ticking(), Unwatched())
    assert not isinstance(await limiter.reserve([ONE]), Refused)
