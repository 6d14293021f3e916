"""Leases that live in the store: kept while their requests run, ended once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from gateway.limits.base import Charge, Decisions, Used
from gateway.limits.judge import Taken
from gateway.limits.remote import calls
from gateway.limits.remote.calls import Call
from gateway.limits.remote.link import Link, Trouble
from gateway.limits.watch import StoreWatch, Tasks

_AT_ONCE = 16  # renewals under way at the same time: decisions go in between
_MOST_UNTOLD = 20_000  # ends kept for a store that fails; beyond it the oldest are forgotten
_ATTEMPTS = 5


class Ender(Protocol):
    """Who ends leases."""

    async def end(self, lease: RemoteLease, used: Used | None) -> None:
        """Settle, or release where ``used`` is None. Called once a lease."""


class RemoteLease:
    """What one request took of a store."""

    at_once = False

    def __init__(self, name: str, tenant: str, taken: Taken, ender: Ender) -> None:
        self.name = name
        self.tenant = tenant
        self.decisions: Decisions = taken.decisions
        self.shadow_refusal: Charge | None = taken.shadow_refusal
        self.charges = taken.charges
        self.doubtful = False  # a renewal may be on its way still
        self.lost = False
        self._ender: Ender | None = ender

    async def settle(self, used: Used) -> None:
        """Charge what was used."""
        await self._end(used)

    async def release(self) -> None:
        """Give everything back."""
        await self._end(None)

    async def _end(self, used: Used | None) -> None:
        ender, self._ender = self._ender, None
        if ender is not None:
            await ender.end(self, used)


class Running:
    """The leases of requests under way; their slots are renewed by one task.

    ``lease`` is how many seconds a slot lives without a renewal; each third of it there is one.
    """

    def __init__(self, link: Link, lease: float, tasks: Tasks, watch: StoreWatch) -> None:
        self._link = link
        self._every = lease / 3
        self._slot_ms = round(lease * 1000)
        self._tasks = tasks
        self._watch = watch
        self._leases: dict[str, RemoteLease] = {}
        self._renewing = False

    def add(self, lease: RemoteLease) -> None:
        """A request has begun."""
        self._leases[lease.name] = lease
        if not self._renewing:
            self._renewing = True
            self._tasks.spawn(self._keep_renewing(), "limiter leases")

    def remove(self, lease: RemoteLease) -> None:
        """It is over."""
        self._leases.pop(lease.name, None)

    def __len__(self) -> int:
        return len(self._leases)

    async def renew(self) -> None:
        """Renew every lease, as long as the store answers."""
        for some in _chunks(tuple(self._leases), _AT_ONCE):
            if not self._link.up or self._link.closed:
                return
            await asyncio.gather(*map(self._renew, some))

    async def _keep_renewing(self) -> None:
        while not self._link.closed:
            await asyncio.sleep(self._every)
            await self.renew()

    async def _renew(self, name: str) -> None:
        lease = self._leases.get(name)
        if lease is None:
            return
        lease.doubtful = True
        call = calls.renew(lease.name, lease.tenant, lease.charges, self._slot_ms)
        reply = await self._link.run(call)
        if isinstance(reply, Trouble):
            return
        lease.doubtful = False
        if reply.code and not lease.lost:
            self._watch.lost(reply.code)
        lease.lost = reply.code > 0


@dataclass(frozen=True, slots=True)
class _Untold:
    call: Call
    attempts: int


class Endings:
    """Tells the store what is over: at once where it answers, else when it does again."""

    def __init__(self, link: Link, timeout: float, tasks: Tasks) -> None:
        self._link = link
        self._timeout = timeout
        self._tasks = tasks
        self._untold: deque[_Untold] = deque(maxlen=_MOST_UNTOLD)
        self._telling: set[asyncio.Task[None]] = set()

    async def tell(self, call: Call) -> None:
        """Tell the store; not waited for longer than the timeout, nor lost by a cancellation."""
        untold = _Untold(call, 0)
        if not self._link.up:
            self._untold.append(untold)
            return
        telling = self._tasks.spawn(self._deliver(untold), "limiter lease end")
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)
        await asyncio.wait({telling}, timeout=self._timeout)

    async def catch_up(self) -> None:
        """Tell what could not be told."""
        while self._untold and self._link.up:
            await self._deliver(self._untold.popleft())

    async def finish(self) -> None:
        """Wait for what is being told, a little."""
        if self._telling:
            await asyncio.wait(self._telling, timeout=2 * self._timeout)

    async def _deliver(self, untold: _Untold) -> None:
        reply = await self._link.run(untold.call)
        if isinstance(reply, Trouble) and untold.attempts < _ATTEMPTS:
            self._untold.append(_Untold(untold.call, untold.attempts + 1))


def _chunks(names: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    remaining = iter(names)
    while some := tuple(islice(remaining, size)):
        yield some
