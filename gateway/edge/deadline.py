"""A deadline for one wait after another, with one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Deadline:
    """Calls ``missed`` once a wait has lasted too long.

    A stream waits for each of its events, and a timer a wait costs more than the event: here the
    timer is left as it is while waits end in time, and set anew when it goes off. Times are
    seconds of the loop's clock.
    """

    __slots__ = ("_at", "_loop", "_missed", "_timer", "_timer_at")

    def __init__(self, missed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._missed = missed
        self._at = math.inf  # when the wait under way must be over
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def begin(self, seconds: float) -> None:
        """A wait begins that may last so long."""
        self.begin_until(self._loop.time() + seconds)

    def begin_until(self, at: float) -> None:
        """A wait begins that must be over by then."""
        self._at = at
        if at < self._timer_at:
            self._set(at)

    def end(self) -> None:
        """The wait is over."""
        self._at = math.inf

    def stop(self) -> None:
        """No wait will follow."""
        self._at = self._timer_at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._look), at

    def _look(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self._at <= self._loop.time():
            self._missed()
        elif self._at < math.inf:
            self._set(self._at)
