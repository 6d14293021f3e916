"""Outlier ejection: taking out a backend that fails, and trying it again. Pure.

Time is an argument. The rules are those of Envoy's outlier detection (consecutive failures, a time
that grows with every ejection, a cap on the share that may be out), with the half-open state of a
circuit breaker in place of a return at full traffic:

- ``consecutive_failures`` in a row eject a backend, for ``base_time`` times the number of its
  ejections and ``max_time`` at most; a ``base_time`` in service takes one off that number;
- afterwards it is half open: one request is its trial, and decides between service and the next,
  longer ejection;
- of no model's backends are more than ``max_share`` out, and one is always left.

It has nothing to do with integrity: what leaked is quarantined (``gateway.core.quarantine``) and
comes back by an operator's word alone, what failed comes back by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from gateway.core.quarantine import within_share


class Failure(StrEnum):
    """What a backend did wrong, also the metric label."""

    CONNECT = "connect"  # no connection, so nothing was sent
    TIMEOUT = "timeout"  # the first byte, or the next one, did not come in time
    BROKE = "broke"  # the connection ended, or was no HTTP
    STATUS = "status"  # it answered with a 5xx


class State(StrEnum):
    """What a backend may be sent: everything, nothing, one trial."""

    IN_SERVICE = "in_service"
    EJECTED = "ejected"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator set; times in seconds. No ``consecutive_failures``: nothing is ejected."""

    consecutive_failures: int = 5
    base_time: float = 30.0
    max_time: float = 300.0
    max_share: float = 0.5


@dataclass(frozen=True, slots=True)
class Health:
    """How a backend fares: failures in a row, ejections that still count, and the present one.

    ``until``: when the present ejection is over; None in service. ``since``: when its present
    state began (an ejection, or the last return from one). ``reason``: of the last ejection.
    """

    failures: int = 0
    ejections: int = 0
    until: float | None = None
    since: float = 0.0
    reason: Failure | None = None

    def state(self, now: float) -> State:
        """Its state at ``now``."""
        if self.until is None:
            return State.IN_SERVICE
        return State.EJECTED if now < self.until else State.HALF_OPEN

    def retry_after(self, now: float) -> int:
        """Whole seconds until it may be tried again, 1 at least."""
        return max(1, ceil((self.until or now) - now))


def failed(
    health: Health, failure: Failure, now: float, rules: Rules, *, trial: bool, may_eject: bool
) -> Health:
    """The health after a failure.

    ``trial``: of the request that was its trial. ``may_eject``: whether others are left to serve.
    Where they are not, failures go on counting. What else began before an ejection says nothing
    of the time after it.
    """
    if health.until is not None:
        return _ejected(health, failure, now, rules) if trial else health
    counted = replace(health, failures=health.failures + 1)
    limit = rules.consecutive_failures
    if not limit or counted.failures < limit or not may_eject:
        return counted
    return _ejected(counted, failure, now, rules)


def answered(health: Health, now: float, *, trial: bool) -> Health:
    """The health once an answer has begun: a trial is passed."""
    if not trial or health.until is None:
        return health
    return replace(health, failures=0, until=None, since=now)


def completed(health: Health) -> Health:
    """The health after a whole answer: no row of failures goes over it."""
    if health.until is not None or not health.failures:
        return health
    return replace(health, failures=0)


def one_left(
    name: str, serving: Mapping[str, Collection[str]], out: Iterable[str], max_share: float
) -> bool:
    """Whether ``name`` may be taken out too: within the share, and no model loses its last one.

    ``serving``: the backends of each model that ``name`` serves; ``out``: those that are out.
    """
    gone = {name, *out}
    return within_share(name, serving, gone, max_share) and not any(
        gone.issuperset(names) for names in serving.values()
    )


def _ejected(health: Health, failure: Failure, now: float, rules: Rules) -> Health:
    served = now - health.since if health.until is None else 0.0
    forgiven = int(served // rules.base_time)
    times = max(0, health.ejections - forgiven) + 1
    until = now + min(rules.base_time * times, rules.max_time)
    return Health(0, times, until, now, failure)
