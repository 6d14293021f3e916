"""All charges of a request or none: what every store decides by, pure.

A store finds each quota's *level*, how much of it is in use: the picoseconds a bucket's TAT lies
ahead, or the slots taken. Everything told to a client follows from levels, here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from gateway.limits import gcra
from gateway.limits.base import Charge, Concurrency, Decisions, Refused, Used
from gateway.limits.gcra import Decision

Level = int

_SLOT_RETRY_SECONDS = 1.0  # when a slot comes free is not known; the shortest wait a header can say


class Taken(Struct, frozen=True):
    """What a store has to take, and what a lease tells of it."""

    charges: tuple[Charge, ...]
    decisions: Decisions
    shadow_refusal: Charge | None


def check(charges: Sequence[Charge]) -> None:
    """Raises ``ValueError`` for a key twice, for two tenants, for a negative cost."""
    if any(charge.cost < 0 for charge in charges):
        raise ValueError("a cost cannot be negative")
    if len(charges) < 2:
        return
    if len({charge.key for charge in charges}) != len(charges):
        raise ValueError("two charges of one request have the same key")
    if len({charge.key.tenant for charge in charges}) > 1:
        raise ValueError("the charges of one request are of several tenants")


def judge(charges: Sequence[Charge], levels: Sequence[Level]) -> Taken | Refused:
    """The outcome for quotas at these levels, in the order of the charges."""
    decisions = list(map(_ask, charges, levels))
    if all(decision.allowed for decision in decisions):
        return Taken(tuple(charges), dict(zip(charges, decisions, strict=True)), None)
    asked = list(map(_Asked, charges, levels, decisions))
    refusal = _worst_refusal(asked, shadow=False)
    if refusal is not None:
        told = {one.charge: one.untaken() for one in asked}
        return Refused(refusal.charge, refusal.decision, told)
    shadow_refusal = _worst_refusal(asked, shadow=True)
    return Taken(
        tuple(charge for charge in charges if not charge.shadow),
        {one.charge: one.untaken() if one.charge.shadow else one.decision for one in asked},
        shadow_refusal.charge if shadow_refusal else None,
    )


def standing(charge: Charge, level: Level) -> Decision:
    """How a quota stands, with nothing asked of it."""
    if isinstance(charge.quota, Concurrency):
        return _slots(charge.quota, level, fits=level <= charge.quota.limit)
    return gcra.standing(level, charge.quota)


def difference(charge: Charge, used: Used | None) -> int:
    """Units to charge on top of what was reserved; negative ones are to be given back."""
    return (0 if used is None else used.charged_to(charge)) - charge.cost


class _Asked(Struct, frozen=True):
    charge: Charge
    level: Level
    decision: Decision

    def untaken(self) -> Decision:
        """What is to be told where nothing was taken."""
        return standing(self.charge, self.level) if self.decision.allowed else self.decision


def _ask(charge: Charge, level: Level) -> Decision:
    if isinstance(charge.quota, Concurrency):
        fits = level + charge.cost <= charge.quota.limit
        return _slots(charge.quota, level + charge.cost * fits, fits=fits)
    return gcra.decide(level, charge.cost, charge.quota)


def _slots(quota: Concurrency, used: int, *, fits: bool) -> Decision:
    wait = 0.0 if fits else _SLOT_RETRY_SECONDS
    return Decision(fits, quota.limit, max(0, quota.limit - used), wait, wait)


def _worst_refusal(asked: Iterable[_Asked], *, shadow: bool) -> _Asked | None:
    """The refusal to tell: one that no wait cures, else the one to wait longest for."""
    refused = [one for one in asked if one.charge.shadow is shadow and not one.decision.allowed]
    return max(refused, key=_severity, default=None)


def _severity(asked: _Asked) -> float:
    wait = asked.decision.retry_after
    return float("inf") if wait is None else wait
