"""What operators see of a limiter, told to whoever keeps metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from gateway.errors import Rejection
from gateway.limits.base import Charge, Decisions, Lease, Limiter, Refused, Unlimited

T = TypeVar("T")


class Outcome(StrEnum):
    """How a request came out of ``reserve``."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    UNCHECKED = "unchecked"  # admitted while the store fails
    UNAVAILABLE = "unavailable"  # refused while the store fails


class StoreWatch(Protocol):
    """Called on the event loop; must not wait."""

    def store_is(self, up: bool) -> None:
        """Whether the store answers: once at the beginning, then at every change."""

    def decided(self, outcome: Outcome, seconds: float) -> None:
        """A request was decided, after so long."""

    def repaired(self, keys: int) -> None:
        """Keys without an end, or with unreadable content, were put right."""

    def lost(self, slots: int) -> None:
        """Slots of running requests ran out and are taken by others."""


class Unwatched:
    """For those who keep no metrics."""

    def store_is(self, up: bool) -> None:
        """Not kept."""

    def decided(self, outcome: Outcome, seconds: float) -> None:
        """Not kept."""

    def repaired(self, keys: int) -> None:
        """Not kept."""

    def lost(self, slots: int) -> None:
        """Not kept."""


class Tasks(Protocol):
    """Where a limiter's own work runs: held while it runs, cancelled together."""

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start ``work`` as an ``asyncio.Task``."""

    async def cancel(self) -> None:
        """Cancel what runs, and wait until it is over."""


class WatchedLimiter:
    """A limiter whose every decision is told to a watch."""

    def __init__(self, limiter: Limiter, clock: Callable[[], float], watch: StoreWatch) -> None:
        self._limiter = limiter
        self._clock = clock
        self._watch = watch

    async def reserve(self, charges: Sequence[Charge]) -> Lease | Refused:
        """As the limiter within."""
        began = self._clock()
        try:
            taken = await self._limiter.reserve(charges)
        except Rejection:
            self._watch.decided(Outcome.UNAVAILABLE, self._clock() - began)
            raise
        self._watch.decided(_outcome(charges, taken), self._clock() - began)
        return taken

    async def peek(self, charges: Sequence[Charge]) -> Decisions:
        """As the limiter within."""
        return await self._limiter.peek(charges)

    async def close(self) -> None:
        """As the limiter within."""
        await self._limiter.close()


def _outcome(charges: Sequence[Charge], taken: Lease | Refused) -> Outcome:
    if isinstance(taken, Refused):
        return Outcome.REFUSED
    return Outcome.UNCHECKED if charges and isinstance(taken, Unlimited) else Outcome.ADMITTED
