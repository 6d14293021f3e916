"""What every limiter store offers, and the values it deals in.

The methods are coroutines because a store may be elsewhere. A store takes all charges of a
request or none, and it alone reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.limits.gcra import Decision, Quota


class Unit(StrEnum):
    """What a quota counts; how a lease treats it follows from this.

    Requests stay charged when a request is settled, tokens are charged as used, slots are given
    back.
    """

    REQUESTS = "requests"
    TOKENS = "tokens"
    SLOTS = "concurrent requests"


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most ``limit`` at the same time."""

    limit: int


@dataclass(frozen=True, slots=True)
class LimitKey:
    """Whose quota, and which. Two fields, so that no separator can make two names collide."""

    tenant: str
    name: str  # as an operator knows it: "tokens per minute"


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request asks of one quota. ``shadow`` counts it but never refuses."""

    key: LimitKey
    unit: Unit
    quota: Quota | Concurrency
    cost: int
    shadow: bool = False


Decisions = Mapping[Charge, Decision]


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was taken. ``which`` is the charge to wait longest for, ``decision`` its outcome."""

    which: Charge
    decision: Decision
    decisions: Decisions


class Lease(Protocol):
    """What a request took. The first of ``settle`` and ``release`` counts, later ones do nothing.

    ``decisions`` are the quotas as they stood after taking; ``shadow_refusal`` is the charge a
    shadow quota would have refused: then nothing was taken from any shadow quota, just as if it
    had been refused.
    """

    decisions: Decisions
    shadow_refusal: Charge | None

    async def settle(self, tokens: int) -> None:
        """The request is over and used this many tokens, prompt and output."""

    async def release(self) -> None:
        """The request used nothing: everything is given back, the request itself too."""


class Limiter(Protocol):
    """Quotas of all tenants."""

    async def reserve(self, charges: Sequence[Charge]) -> Lease | Refused:
        """Take all charges or none. Keys must differ.

        Raises ``Rejection`` (STORE_UNAVAILABLE) where the store does not answer in time and is
        configured to refuse then.
        """
