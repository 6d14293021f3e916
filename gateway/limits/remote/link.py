"""The way to the store: scripts are run, and where they fail the way is closed and tried again.

While it is closed nothing is sent but a probe, so that decisions are made at once and a store
that comes back is not met by a backlog.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    ResponseError,
)

from gateway.limits.remote import calls
from gateway.limits.remote.calls import Call, Reply, Verdict
from gateway.limits.remote.clients import CONNECTIONS, Client
from gateway.limits.watch import StoreWatch, Tasks

log = logging.getLogger(__name__)

LATE = "no answer in time"
NONSENSE = "an answer that is none"
_PROBE_SECONDS = 0.5  # between two probes
_HARD_STOP = 10  # timeouts: longer than connecting, signing in and a script could take

# The server answered, and that it did not do it.
_REFUSED = (ResponseError, AuthenticationError, BusyLoadingError)


@dataclass(frozen=True, slots=True)
class Trouble:
    """No reply. ``reason`` holds nothing of the store's address or of what was sent."""

    reason: str
    perhaps_done: bool


class Link:
    """Runs scripts on one store. ``clock`` gives monotonic seconds, ``timeout`` is in seconds."""

    def __init__(
        self,
        client: Client,
        *,
        timeout: float,
        clock: Callable[[], float],
        tasks: Tasks,
        watch: StoreWatch,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._clock = clock
        self._tasks = tasks
        self._watch = watch
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._when_up: list[Callable[[], Awaitable[None]]] = []
        self._down_since: float | None = None
        self._up_since = clock()
        self._closed = False
        watch.store_is(True)

    @property
    def up(self) -> bool:
        """Whether the store may be asked."""
        return self._down_since is None

    def when_up(self, catch_up: Callable[[], Awaitable[None]]) -> None:
        """What to do each time the store answers again."""
        self._when_up.append(catch_up)

    async def run(self, call: Call, not_after: float | None = None) -> Reply | Trouble:
        """Run a script. What goes wrong is returned, never raised, and closes the way.

        It is not begun later than ``not_after``. To be run in a task that no client's leaving
        cancels: a connection is used again only after a whole answer was read from it.
        """
        began = self._clock()
        async with self._free:
            if not_after is not None and self._clock() >= not_after:
                return Trouble(LATE, perhaps_done=False)
            answer = await self._attempt(call)
        if isinstance(answer, Trouble):
            self.failed(answer.reason, call.tenant, began)
        elif answer.repaired:
            self._watch.repaired(answer.repaired)
        return answer

    def failed(self, reason: str, tenant: str, began: float) -> None:
        """Something that began then found the store failing for this tenant's keys."""
        if not self.up or began < self._up_since:
            return
        self._down_since = self._clock()
        self._watch.store_is(False)
        log.warning("limiter store fails: %s", reason)
        self._tasks.spawn(self._recover(tenant), "limiter store recovery")

    @property
    def closed(self) -> bool:
        """Whether loops over this way are to end.

        To cancel them is not enough: until Python 3.12 ``asyncio.wait_for``, which redis-py sends
        with, drops a cancellation that comes just as what it waits for is done.
        """
        return self._closed

    async def close(self) -> None:
        """End all that is under way, and hang up."""
        self._closed = True
        await self._tasks.cancel()
        await self._client.aclose()

    async def _attempt(self, call: Call) -> Reply | Trouble:
        try:
            async with asyncio.timeout(_HARD_STOP * self._timeout):
                raw = await self._evaluate(call)
                if (reply := calls.read(raw)) is not None:
                    return reply
                await self._client.aclose()  # whoever that is, and whatever else it still says
                return Trouble(NONSENSE, perhaps_done=True)
        except Exception as error:  # whatever it raises, the store gave no reply
            return Trouble(type(error).__name__, not isinstance(error, _REFUSED))

    async def _evaluate(self, call: Call) -> object:
        rest = (len(call.keys), *call.keys, *call.args)
        try:
            return await self._client.execute_command("EVALSHA", call.script.sha, *rest)
        except NoScriptError:  # a new server, or one that was told to forget: EVAL teaches it
            return await self._client.execute_command("EVAL", call.script.source, *rest)

    async def _recover(self, tenant: str) -> None:
        while not await self._answers(tenant):
            if self._closed:
                return
            await asyncio.sleep(_PROBE_SECONDS)
        down = self._clock() - (self._down_since or 0.0)
        self._down_since, self._up_since = None, self._clock()
        self._watch.store_is(True)
        log.warning("limiter store answers again after %.1f s", down)
        for catch_up in self._when_up:
            await catch_up()

    async def _answers(self, tenant: str) -> bool:
        """Whether a script that writes is done in time, where this tenant's keys are."""
        began = self._clock()
        reply = await self._attempt(calls.probe(tenant))
        in_time = self._clock() - began <= self._timeout
        return isinstance(reply, Reply) and reply.code == Verdict.TAKEN and in_time
