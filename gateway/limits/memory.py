"""Quotas in this process's memory. They start full, and another process does not see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.limits import gcra
from gateway.limits.base import Charge, Concurrency, Decisions, LimitKey, Refused, Used
from gateway.limits.gcra import Quota, Tat
from gateway.limits.judge import Level, Taken, check, difference, judge, standing

_SWEEP_SECONDS = 60.0


class MemoryLimiter:
    """A limiter for one process and one event loop.

    ``clock`` gives monotonic seconds. Nothing is awaited between reading and writing, so requests
    cannot come between each other. Memory is bounded by the quotas in use: a full bucket and an
    unused slot are forgotten.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tats: dict[LimitKey, Tat] = {}
        self._slots: dict[LimitKey, int] = {}
        self._next_sweep = clock() + _SWEEP_SECONDS

    async def reserve(self, charges: Sequence[Charge]) -> MemoryLease | Refused:
        """Take all charges or none. Raises ``ValueError`` as ``judge.check``."""
        check(charges)
        now = self._clock()
        self._sweep(now)
        outcome = judge(charges, [self._level(charge, now) for charge in charges])
        if isinstance(outcome, Refused):
            return outcome
        for charge in outcome.charges:
            self._take(charge, now)
        return MemoryLease(self, outcome)

    async def peek(self, charges: Sequence[Charge]) -> Decisions:
        """How the quotas stand; takes nothing."""
        now = self._clock()
        return {charge: standing(charge, self._level(charge, now)) for charge in charges}

    async def close(self) -> None:
        """Nothing is held elsewhere."""

    def give_back(self, charges: Iterable[Charge], used: Used | None) -> None:
        """End a lease: so much was used, or None for nothing at all. Called once a lease."""
        now = self._clock()
        for charge in charges:
            if isinstance(charge.quota, Concurrency):
                self._free(charge)
            elif units := difference(charge, used):
                self._settle(charge.key, charge.quota, now, units)

    def __len__(self) -> int:
        """How many quotas are remembered."""
        return len(self._tats) + len(self._slots)

    def _level(self, charge: Charge, now: float) -> Level:
        if isinstance(charge.quota, Concurrency):
            return self._slots.get(charge.key, 0)
        return gcra.ahead(self._tats.get(charge.key), now)

    def _take(self, charge: Charge, now: float) -> None:
        if isinstance(charge.quota, Concurrency):
            self._slots[charge.key] = self._slots.get(charge.key, 0) + charge.cost
        else:
            self._settle(charge.key, charge.quota, now, charge.cost)

    def _free(self, charge: Charge) -> None:
        left = self._slots.pop(charge.key, 0) - charge.cost
        if left > 0:
            self._slots[charge.key] = left

    def _settle(self, key: LimitKey, quota: Quota, now: float, units: int) -> None:
        tat = gcra.settle(self._tats.get(key), now, units, quota)
        if tat is not None:
            self._tats[key] = tat

    def _sweep(self, now: float) -> None:
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_SECONDS
        self._tats = {k: tat for k, tat in self._tats.items() if not gcra.expired(tat, now)}


class MemoryLease:
    """What one request took of a ``MemoryLimiter``."""

    at_once = True

    def __init__(self, limiter: MemoryLimiter, taken: Taken) -> None:
        self.decisions = taken.decisions
        self.shadow_refusal = taken.shadow_refusal
        self._limiter = limiter
        self._charges = taken.charges

    async def settle(self, used: Used) -> None:
        """Charge what was used."""
        self._end(used)

    async def release(self) -> None:
        """Give everything back."""
        self._end(None)

    def _end(self, used: Used | None) -> None:
        charges, self._charges = self._charges, ()
        self._limiter.give_back(charges, used)
