"""The generic cell rate algorithm, pure.

Source: ITU-T Recommendation I.371 (2004), annex A, in its virtual scheduling form, generalised to
costs. A bucket is one number, the theoretical arrival time (TAT) at which it will be full again:

    T      = period / amount                       the emission interval of one unit
    TAT'   = max(TAT, now) + cost * T
    admit  iff  TAT' - burst * T <= now            burst * T is the delay tolerance

so that within any window of w seconds at most ``burst + w * amount / period`` units are admitted.

Times are counted in whole picoseconds with T rounded up. Sums of floats would drift: a full bucket
would now and then refuse its last unit, and a refund would not be the exact inverse of its charge.
Rounding up makes the rate lower than asked, by less than one part in ten thousand up to 6e9 units
a minute, and never higher.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

Tat = int  # picoseconds of the caller's clock

_PER_SECOND = 10**12
_PER_MILLISECOND = 10**9


@dataclass(frozen=True, slots=True)
class Quota:
    """``amount`` units every ``period`` seconds, and at most ``burst`` of them at once.

    Raises ``ValueError`` where one is not positive.
    """

    amount: int
    period: float
    burst: int
    # In picoseconds: T, and how far the TAT may lie ahead.
    interval: int = field(init=False, repr=False, compare=False)
    tolerance: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if min(self.amount, self.period, self.burst) <= 0:
            raise ValueError("amount, period and burst must be positive")
        periods, per = self.period.as_integer_ratio()
        interval = -(-periods * _PER_SECOND // (per * self.amount))  # rounded up, without a float
        object.__setattr__(self, "interval", interval)
        object.__setattr__(self, "tolerance", self.burst * interval)


class Decision(Struct, frozen=True, gc=False):
    """The outcome for one bucket, and what may be told of it.

    ``remaining`` units are left at once; after ``reset_after`` seconds the bucket is full.
    ``retry_after`` seconds are enough for the same cost to be admitted if no one else asks; None
    where no wait is, since the cost is over the whole burst (``impossible``).
    """

    allowed: bool
    limit: int
    remaining: int
    reset_after: float
    retry_after: float | None = 0.0

    @property
    def impossible(self) -> bool:
        """Whether the cost can never be admitted."""
        return self.retry_after is None


def ahead(state: Tat | None, now: float) -> int:
    """How far the TAT lies ahead of ``now`` (seconds), in picoseconds: 0 for a full bucket."""
    return 0 if state is None else max(0, state - _picoseconds(now))


def decide(ahead: int, cost: int, quota: Quota) -> Decision:
    """Ask for ``cost`` units of a bucket whose TAT lies so far ahead.

    Where it is allowed, ``settle`` with the cost is to follow. A cost of 0 is admitted unless the
    bucket is in debt. Raises ``ValueError`` if negative.
    """
    if cost < 0:
        raise ValueError("a cost cannot be negative")
    after = ahead + cost * quota.interval
    wait = after - quota.tolerance
    if wait <= 0:
        return Decision(True, quota.burst, -wait // quota.interval, after / _PER_SECOND)
    retry_after = None if cost > quota.burst else _rounded_up(wait)
    return _decision(ahead, quota, allowed=False, retry_after=retry_after)


def standing(ahead: int, quota: Quota) -> Decision:
    """What may be told of a bucket without asking for anything."""
    return _decision(ahead, quota, allowed=True, retry_after=0.0)


def settle(state: Tat | None, now: float, difference: int, quota: Quota) -> Tat | None:
    """Charge ``difference`` units, or give them back where it is negative.

    This refuses nothing: a charge may leave a debt that has to be refilled first. What was given
    back never exceeds a full bucket. A refund of what was reserved in an earlier window counts in
    the window it is made in: over a request's whole life only what it really used is charged.
    """
    if difference > 0:
        instant = _picoseconds(now)
        start = instant if state is None else max(state, instant)
        return start + difference * quota.interval
    return None if state is None else state + difference * quota.interval


def expired(state: Tat, now: float) -> bool:
    """Whether the bucket is full, so that forgetting it changes nothing."""
    return state <= _picoseconds(now)


def _decision(ahead: int, quota: Quota, *, allowed: bool, retry_after: float | None) -> Decision:
    remaining = max(0, (quota.tolerance - ahead) // quota.interval)
    return Decision(allowed, quota.burst, remaining, ahead / _PER_SECOND, retry_after)


def _picoseconds(seconds: float) -> int:
    return int(seconds * _PER_SECOND)


def _rounded_up(picoseconds: int) -> float:
    """Seconds, to the next millisecond: adding them to a float clock must not fall short."""
    return (picoseconds // _PER_MILLISECOND + 1) / 1000
