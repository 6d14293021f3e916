"""One contender, measured alone: ``contenders.py NAME URL CALLERS DECISIONS`` prints microseconds.

Run by the interpreter that has the contender's library: each is imported only where it is asked.
Every decision is one allowed request of one key, whose limit is far away.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

PER_MINUTE = 10_000_000
WARM_UP = 300
TIMEOUT = 10.0

Decide = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def poolgate(url: str, *, quotas: int, settle: bool = False) -> AsyncIterator[Decide]:
    from gateway.edge.tasks import Tasks
    from gateway.limits.base import Charge, LimitKey, Refused, Unit, Used
    from gateway.limits.gcra import Quota
    from gateway.limits.stores import open_limiter
    from gateway.limits.watch import Unwatched
    from gateway.settings.store import parse_store

    limiter = open_limiter(
        parse_store(url),
        when_store_fails="refuse",
        timeout=TIMEOUT,
        lease=30.0,
        clock=asyncio.get_running_loop().time,
        tasks=Tasks(),
        watch=Unwatched(),
    )
    quota = Quota(PER_MINUTE, 60.0, PER_MINUTE)
    charges = [
        Charge(LimitKey("tenant", f"quota {n}"), Unit.TOKENS, quota, 1) for n in range(quotas)
    ]

    async def decide() -> None:
        lease = await limiter.reserve(charges)
        assert not isinstance(lease, Refused)
        if settle:
            await lease.settle(Used(2, 0))

    try:
        yield decide
    finally:
        await limiter.close()


@asynccontextmanager
async def limits(url: str, *, strategy: str) -> AsyncIterator[Decide]:
    from limits import RateLimitItemPerMinute
    from limits.aio import storage, strategies

    if url == "memory":
        store: Any = storage.MemoryStorage()
    else:
        store = storage.RedisStorage(f"async+{url}", implementation="redispy")
    limiter = getattr(strategies, strategy)(store)
    item = RateLimitItemPerMinute(PER_MINUTE)

    async def decide() -> None:
        assert await limiter.hit(item, "tenant")

    yield decide


@asynccontextmanager
async def throttled(url: str, *, using: str) -> AsyncIterator[Decide]:
    from throttled import asyncio as library

    backend = library.MemoryStore() if url == "memory" else library.RedisStore(server=url)
    quota = library.rate_limiter.per_min(PER_MINUTE, burst=PER_MINUTE)
    limiter = library.Throttled(using=using, quota=quota, store=backend)

    async def decide() -> None:
        assert not (await limiter.limit("tenant", 1)).limited

    yield decide


CONTENDERS: dict[str, Callable[[str], Any]] = {
    "poolgate": lambda url: poolgate(url, quotas=1),
    "poolgate, four quotas": lambda url: poolgate(url, quotas=4),
    "poolgate, four quotas and settled": lambda url: poolgate(url, quotas=4, settle=True),
    "limits, fixed window": lambda url: limits(url, strategy="FixedWindowRateLimiter"),
    "limits, moving window": lambda url: limits(url, strategy="MovingWindowRateLimiter"),
    "throttled-py, GCRA": lambda url: throttled(url, using="gcra"),
}


async def measure(name: str, url: str, callers: int, decisions: int) -> tuple[float, float]:
    """Microseconds a decision: of the wall clock, and of this process's processor time."""
    async with CONTENDERS[name](url) as decide:

        async def call(times: int) -> None:
            for _ in range(times):
                await decide()

        await asyncio.gather(*(call(WARM_UP // callers) for _ in range(callers)))
        wall, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*(call(decisions // callers) for _ in range(callers)))
        microseconds = 1e6 / (decisions // callers * callers)
        return (
            (time.perf_counter() - wall) * microseconds,
            (time.process_time() - processor) * microseconds,
        )


if __name__ == "__main__":
    contender, address, at_once, number = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(contender, address, int(at_once), int(number)))))
