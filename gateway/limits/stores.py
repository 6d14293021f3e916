"""From the configured store to a limiter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gateway.limits.base import Limiter
from gateway.limits.memory import MemoryLimiter
from gateway.limits.remote.clients import client_for
from gateway.limits.remote.limiter import RemoteLimiter
from gateway.limits.remote.link import Link
from gateway.limits.watch import StoreWatch, Tasks, WatchedLimiter
from gateway.settings.store import Store


def open_limiter(
    store: Store,
    *,
    when_store_fails: Literal["refuse", "allow"],
    timeout: float,
    lease: float,
    clock: Callable[[], float],
    tasks: Tasks,
    watch: StoreWatch,
) -> Limiter:
    """A limiter on that store. It connects when it is first asked.

    ``timeout`` and ``lease`` are seconds; ``clock`` gives monotonic ones. ``tasks`` are for this
    limiter alone: its ``close`` ends them. To be called on a running event loop.
    """
    if not store.shared:
        watch.store_is(True)
        return WatchedLimiter(MemoryLimiter(clock), clock, watch)
    client = client_for(store, timeout)
    link = Link(client, timeout=timeout, clock=clock, tasks=tasks, watch=watch)
    limiter = RemoteLimiter(
        link,
        admit_without_store=when_store_fails == "allow",
        timeout=timeout,
        lease=lease,
        clock=clock,
        tasks=tasks,
        watch=watch,
    )
    return WatchedLimiter(limiter, clock, watch)
