from __future__ import annotations

import asyncio

import pytest

from gateway.edge.tasks import Tasks
from gateway.limits.base import Charge, LimitKey, Unit
from gateway.limits.gcra import Quota
from gateway.limits.stores import open_limiter
from gateway.settings.store import MEMORY, parse_store
from valkey_server import Watch

ONE = Charge(LimitKey("t", "requests"), Unit.REQUESTS, Quota(1, 60.0, 1), 1)


def opened(store, watch):
    return open_limiter(
        store,
        when_store_fails="allow",
        timeout=0.1,
        lease=1.0,
        clock=asyncio.get_running_loop().time,
        tasks=Tasks(),
        watch=watch,
    )


async def test_memory_is_always_there() -> None:
    watch = Watch()
    limiter = opened(MEMORY, watch)
    assert (await limiter.peek([ONE]))[ONE].remaining == 1
    await limiter.close()
    assert watch.states == [True]


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "rediss://127.0.0.1:1",
        "unix:///nowhere",
        "redis+sentinel://127.0.0.1:1/main",
        "redis+cluster://127.0.0.1:1",
    ],
)
async def test_a_store_elsewhere_is_asked_first_when_a_request_asks(url: str) -> None:
    watch = Watch()
    limiter = opened(parse_store(url), watch)
    assert watch.states == [True]
    await limiter.reserve([ONE])  # nobody is there: it is let through as configured
    assert watch.states == [True, False]
    await limiter.close()
