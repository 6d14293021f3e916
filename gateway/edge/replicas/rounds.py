"""The one task a process that exchanges what gateways share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gateway.edge.metrics import Metrics
from gateway.edge.replicas.line import Group, Line, StoreTrouble
from gateway.edge.tasks import Tasks
from gateway.settings.store import Store

log = logging.getLogger(__name__)
FIRST_WORD: Final = 2.0  # seconds that start-up waits to hear of others
LAST_WORDS: Final = 1.0  # seconds at the end to tell what was not told yet


@dataclass(frozen=True, slots=True)
class Sharing:
    """Where, with whom and how often: who holds ``secret``, each ``every`` seconds."""

    store: Store
    secret: bytes
    every: float


class Part(Protocol):
    """One kind of thing that is shared."""

    @property
    def unreadable(self) -> int:
        """How much was found in the store that no gateway of the group wrote."""

    async def exchange(self) -> bool:
        """Tell and hear; whether there is more of it. Raises ``StoreTrouble``."""

    async def resume(self) -> None:
        """The store answers after trouble. Raises ``StoreTrouble``."""


class Replicas:
    """Exchanges all ``parts`` in turn: as often as agreed, and at once when woken.

    ``start`` it once what it brings may be taken, ``close`` it at the end. While the store does
    not answer, each replica goes on with what it knows.
    """

    def __init__(
        self,
        sharing: Sharing,
        replica: str,
        parts: Callable[[Line, Group], Sequence[Part]],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.sharing = sharing
        self._line = Line(sharing.store)
        self._group = Group(sharing.secret, replica)
        self._parts = parts(self._line, self._group)
        self._metrics = metrics
        self._clock = clock
        self._tasks = Tasks()
        self._running: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._first_over = asyncio.Event()
        self._closed = False
        self._up = True
        self._whole_at: float | None = None

    async def start(self) -> None:
        """Hear of others, if the store answers soon; then go on. One that does is woken."""
        if self._running is not None:
            self.wake()
            return
        self._running = self._tasks.spawn(self._run(), "replicas")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WORD):
                await self._first_over.wait()

    def wake(self) -> None:
        """Something happened here that others should know."""
        self._woken.set()

    def description(self) -> dict[str, Any]:
        """For operators. The store's name holds no password."""
        age = None if self._whole_at is None else round(self._clock() - self._whole_at, 1)
        return {
            "store": str(self.sharing.store),
            "up": self._up,
            "age_s": age,
            "group": self._group.name,
            "replica": self._group.replica,
        }

    async def close(self) -> None:
        """Tell what was not told, if that is done soon; then hang up."""
        self._closed = True
        self.wake()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=LAST_WORDS)
        await self._tasks.cancel()
        await self._line.close()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            await self._round()
            self._first_over.set()
            if self._closed and not self._woken.is_set():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.sharing.every):
                    await self._woken.wait()

    async def _round(self) -> None:
        before = sum(part.unreadable for part in self._parts)
        try:
            for part in self._parts:
                if not self._up:
                    await part.resume()
                if await part.exchange():
                    self.wake()
        except Exception as error:  # a round that ends the task would end all sharing unheard
            known = isinstance(error, StoreTrouble)
            self._store_is(up=False, why=str(error) if known else type(error).__name__)
            self._metrics.shared.failures.inc()
        else:
            self._store_is(up=True)
            self._whole_at = self._clock()
        if unreadable := sum(part.unreadable for part in self._parts) - before:
            self._metrics.shared.unreadable.inc(unreadable)

    def _store_is(self, *, up: bool, why: str = "") -> None:
        self._metrics.shared.up.set(up)
        if up is not self._up:
            log.warning(
                "shared integrity state: %s", "exchanged again" if up else f"the store fails: {why}"
            )
        self._up = up
