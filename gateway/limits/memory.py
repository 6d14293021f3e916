"""Quotas in this process's memory. They start full, and another process does not see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.limits import gcra
from gateway.limits.base import Charge, Concurrency, Decisions, LimitKey, Refused, Unit, Used
from gateway.limits.gcra import Decision, Quota, Tat

_SWEEP_SECONDS = 60.0
_SLOT_RETRY_SECONDS = 1.0  # when a slot comes free is not known; the shortest wait a header can say


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
        """Take all charges or none. Raises ``ValueError`` where two charges have the same key."""
        if len({charge.key for charge in charges}) != len(charges):
            raise ValueError("two charges of one request have the same key")
        now = self._clock()
        self._sweep(now)
        outcomes = {charge: self._ask(charge, now) for charge in charges}
        refusal = _worst_refusal(outcomes.values(), shadow=False)
        if refusal is not None:
            return Refused(refusal.charge, refusal.decision, self._untaken(outcomes.values(), now))
        shadow_refusal = _worst_refusal(outcomes.values(), shadow=True)
        taken = [o for o in outcomes.values() if not (shadow_refusal and o.charge.shadow)]
        for outcome in taken:
            self._commit(outcome)
        untaken = (outcome for outcome in outcomes.values() if outcome not in taken)
        told = self._untaken(untaken, now) if len(taken) < len(outcomes) else {}
        return MemoryLease(
            self,
            charges=tuple(outcome.charge for outcome in taken),
            decisions=told | {outcome.charge: outcome.decision for outcome in taken},
            shadow_refusal=shadow_refusal.charge if shadow_refusal else None,
        )

    async def peek(self, charges: Sequence[Charge]) -> Decisions:
        """How the quotas stand; takes nothing."""
        now = self._clock()
        return {charge: self._peek(charge, now) for charge in charges}

    async def close(self) -> None:
        """Nothing is held elsewhere."""

    def give_back(self, charges: Iterable[Charge], used: Used | None) -> None:
        """End a lease: so much was used, or None for nothing at all. Called once a lease."""
        now = self._clock()
        for charge in charges:
            if isinstance(charge.quota, Concurrency):
                self._free(charge)
            else:
                self._settle(charge, charge.quota, now, used)

    def __len__(self) -> int:
        """How many quotas are remembered."""
        return len(self._tats) + len(self._slots)

    def _ask(self, charge: Charge, now: float) -> _Outcome:
        if isinstance(charge.quota, Concurrency):
            used = self._slots.get(charge.key, 0) + charge.cost
            return _Outcome(charge, used, _slot_decision(charge.quota, used))
        tat, decision = gcra.step(self._tats.get(charge.key), now, charge.cost, charge.quota)
        return _Outcome(charge, tat, decision)

    def _commit(self, outcome: _Outcome) -> None:
        states = self._slots if outcome.charge.unit is Unit.SLOTS else self._tats
        if outcome.state is not None:
            states[outcome.charge.key] = outcome.state

    def _untaken(self, outcomes: Iterable[_Outcome], now: float) -> dict[Charge, Decision]:
        """Decisions as they are to be told where nothing was taken."""
        return {
            o.charge: self._peek(o.charge, now) if o.decision.allowed else o.decision
            for o in outcomes
        }

    def _peek(self, charge: Charge, now: float) -> Decision:
        if isinstance(charge.quota, Concurrency):
            return _slot_decision(charge.quota, self._slots.get(charge.key, 0))
        return gcra.peek(self._tats.get(charge.key), now, charge.quota)

    def _free(self, charge: Charge) -> None:
        left = self._slots[charge.key] - charge.cost
        if left:
            self._slots[charge.key] = left
        else:
            del self._slots[charge.key]

    def _settle(self, charge: Charge, quota: Quota, now: float, used: Used | None) -> None:
        difference = (0 if used is None else used.charged_to(charge)) - charge.cost
        tat = gcra.settle(self._tats.get(charge.key), now, difference, quota)
        if tat is not None:
            self._tats[charge.key] = tat

    def _sweep(self, now: float) -> None:
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_SECONDS
        self._tats = {k: tat for k, tat in self._tats.items() if not gcra.expired(tat, now)}


class MemoryLease:
    """What one request took of a ``MemoryLimiter``."""

    def __init__(
        self,
        limiter: MemoryLimiter,
        *,
        charges: tuple[Charge, ...],
        decisions: Decisions,
        shadow_refusal: Charge | None,
    ) -> None:
        self.decisions = decisions
        self.shadow_refusal = shadow_refusal
        self._limiter = limiter
        self._charges = charges

    async def settle(self, used: Used) -> None:
        """Charge what was used."""
        self._end(used)

    async def release(self) -> None:
        """Give everything back."""
        self._end(None)

    def _end(self, used: Used | None) -> None:
        charges, self._charges = self._charges, ()
        self._limiter.give_back(charges, used)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A charge, its decision, and the state it leaves if taken (a TAT, or slots in use)."""

    charge: Charge
    state: int | None
    decision: Decision


def _worst_refusal(outcomes: Iterable[_Outcome], *, shadow: bool) -> _Outcome | None:
    """The refusal to tell: one that no wait cures, else the one to wait longest for."""
    refused = [o for o in outcomes if o.charge.shadow is shadow and not o.decision.allowed]
    return max(refused, key=_severity, default=None)


def _severity(outcome: _Outcome) -> float:
    wait = outcome.decision.retry_after
    return float("inf") if wait is None else wait


def _slot_decision(quota: Concurrency, used: int) -> Decision:
    allowed = used <= quota.limit
    remaining = max(0, quota.limit - used)
    wait = 0.0 if allowed else _SLOT_RETRY_SECONDS
    return Decision(allowed, quota.limit, remaining, reset_after=wait, retry_after=wait)
