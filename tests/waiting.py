"""How tests wait: a busy machine, or a process that stood still for a second, fails none of them.

A test waits until what it needs holds. Where a duration is the point, it is told on a clock that
stands still while the event loop does. Speed is measured in benchmarks/.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

PATIENCE = 30.0  # seconds; what works takes a small part of it
TICK = 0.005

Clock = Callable[[], float]


async def until(holds: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Poll what there is no event for; raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(TICK)


@asynccontextmanager
async def own_clock() -> AsyncIterator[Clock]:
    """A clock, in seconds, of the time that the event loop had: a tick counts however late it is.

    Never ahead of the real one: for upper bounds only.
    """
    passed = 0.0

    async def tick() -> None:
        nonlocal passed
        while True:
            await asyncio.sleep(TICK)
            passed += TICK

    ticking = asyncio.create_task(tick())
    try:
        yield lambda: passed
    finally:
        ticking.cancel()
