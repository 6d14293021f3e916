"""What every limiter store offers, and the values it deals in.

The methods are coroutines because a store may be elsewhere. A store takes all charges of a
request or none, and it alone reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from gateway.limits.gcra import Decision, Quota


class Unit(StrEnum):
    """What a quota counts; how a lease treats it follows from this.

    Requests stay charged when a request is settled, tokens are charged as used, slots are given
    back. ``TOKENS`` are those of prompt and output together.
    """

    REQUESTS = "requests"
    TOKENS = "tokens"
    INPUT = "input tokens"
    OUTPUT = "output tokens"
    SLOTS = "concurrent requests"


TOKEN_UNITS = frozenset({Unit.TOKENS, Unit.INPUT, Unit.OUTPUT})


class Concurrency(Struct, frozen=True, gc=False):
    """At most ``limit`` at the same time."""

    limit: int


class LimitKey(Struct, frozen=True, gc=False, cache_hash=True):
    """Whose quota, and which. Fields of their own, so that no separator makes names collide."""

    tenant: str
    name: str  # as an operator knows it: "tokens per minute"
    model: str | None = None  # the policy's pattern of a quota for some models, never client data


class Charge(Struct, frozen=True):
    """What a request asks of one quota. ``shadow`` counts it but never refuses.

    It hashes by its key alone: those of one request differ there, and it is hashed a lot.
    """

    key: LimitKey
    unit: Unit
    quota: Quota | Concurrency
    cost: int
    shadow: bool = False

    def __hash__(self) -> int:
        return hash(self.key)


Decisions = Mapping[Charge, Decision]


class Used(Struct, frozen=True, gc=False):
    """Tokens a request used, as they count: cached ones weighted by the policy already.

    Raises ``ValueError`` where one is negative.
    """

    input: int
    output: int

    def __post_init__(self) -> None:
        if min(self.input, self.output) < 0:
            raise ValueError("tokens used cannot be negative")

    def of(self, unit: Unit) -> int:
        """Its tokens of a unit; none of what counts no tokens."""
        match unit:
            case Unit.TOKENS:
                return self.input + self.output
            case Unit.INPUT:
                return self.input
            case Unit.OUTPUT:
                return self.output
        return 0

    def charged_to(self, charge: Charge) -> int:
        """What of it a charge comes to; what is no tokens costs what it was reserved for."""
        return self.of(charge.unit) if charge.unit in TOKEN_UNITS else charge.cost


class Refused(Struct, frozen=True):
    """Nothing was taken. ``which`` is the charge to wait longest for, ``decision`` its outcome."""

    which: Charge
    decision: Decision
    decisions: Decisions


class Lease(Protocol):
    """What a request took. The first of ``settle`` and ``release`` counts, later ones do nothing.

    ``decisions`` are the quotas as they stood after taking; ``shadow_refusal`` is the charge a
    shadow quota would have refused: then nothing was taken from any shadow quota, just as if it
    had been refused. ``at_once``: neither of the two ever waits.
    """

    decisions: Decisions
    shadow_refusal: Charge | None
    at_once: bool

    async def settle(self, used: Used) -> None:
        """The request is over and used this much."""

    async def release(self) -> None:
        """The request used nothing: everything is given back, the request itself too."""


class Unlimited:
    """The lease of a request that was let through without quotas. There is nothing to end."""

    decisions: Decisions = MappingProxyType({})
    shadow_refusal: Charge | None = None
    at_once = True

    async def settle(self, used: Used) -> None:
        """Nothing was taken."""

    async def release(self) -> None:
        """Nothing was taken."""


class Limiter(Protocol):
    """Quotas of all tenants."""

    async def reserve(self, charges: Sequence[Charge]) -> Lease | Refused:
        """Take all charges or none. Keys must differ, and be of one tenant.

        Raises ``Rejection`` (STORE_UNAVAILABLE) where the store does not answer in time and is
        configured to refuse then; configured to allow, the lease is ``Unlimited``.
        """

    async def peek(self, charges: Sequence[Charge]) -> Decisions:
        """How the quotas stand, for operators; takes nothing.

        Raises ``Rejection`` (STORE_UNAVAILABLE) while the store fails, however configured.
        """

    async def close(self) -> None:
        """Give up what it holds of elsewhere."""
