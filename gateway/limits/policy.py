"""From a tenant's policy to charges, and from decisions to what the client is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from types import MappingProxyType

from msgspec import Struct

from gateway.errors import Kind, Rejection
from gateway.limits.base import (
    TOKEN_UNITS,
    Charge,
    Concurrency,
    Decisions,
    LimitKey,
    Refused,
    Unit,
    Used,
)
from gateway.limits.gcra import Decision, Quota
from gateway.settings import Policy, Quotas
from gateway.settings.patterns import covers
from gateway.settings.tenants import Rate

_MINUTE = 60.0
_DAY = 86400.0
_MONTH = 30 * _DAY

# What each rate of a policy is called, counts, and over which period (seconds).
_RATES: Mapping[Rate, tuple[str, Unit, float]] = MappingProxyType(
    {
        "requests_per_minute": ("requests per minute", Unit.REQUESTS, _MINUTE),
        "tokens_per_minute": ("tokens per minute", Unit.TOKENS, _MINUTE),
        "input_tokens_per_minute": ("input tokens per minute", Unit.INPUT, _MINUTE),
        "output_tokens_per_minute": ("output tokens per minute", Unit.OUTPUT, _MINUTE),
        "tokens_per_day": ("tokens per day", Unit.TOKENS, _DAY),
        "tokens_per_month": ("tokens per 30 days", Unit.TOKENS, _MONTH),
    }
)
_SLOTS = "concurrent requests"
# What headers tell of each unit: the limit, what remains, when it is all there again.
_IN_HEADERS: Mapping[Unit, tuple[str, str, str]] = MappingProxyType(
    {
        unit: (
            f"x-ratelimit-limit-{name}",
            f"x-ratelimit-remaining-{name}",
            f"x-ratelimit-reset-{name}",
        )
        for unit, name in (
            (Unit.REQUESTS, "requests"),
            (Unit.TOKENS, "tokens"),
            (Unit.INPUT, "input-tokens"),
            (Unit.OUTPUT, "output-tokens"),
        )
    }
)


class Demand(Struct, frozen=True):
    """What a request is taken to need before it has run.

    ``sure`` is what it needs for certain: tokens counted, or a maximum the client asked for.
    ``most`` adds what is only bounded or assumed. A quota is charged the most, but what is not
    sure only up to its burst: an assumption alone must not make a request impossible.
    """

    sure: Used
    most: Used


_NOTHING = Demand(Used(0, 0), Used(0, 0))


def metered(tenant: str, policy: Policy) -> tuple[Charge, ...]:
    """One unit of every quota of a tenant: of all models, or of those that ``key.model`` covers.

    Made once a configuration, not once a request.
    """
    scopes = ((None, policy), *policy.per_model.items())
    return tuple(
        Charge(LimitKey(tenant, name, pattern), unit, quota, 1, policy.shadow)
        for pattern, quotas in scopes
        for name, unit, quota in _quotas(quotas)
    )


def charges(quotas: Iterable[Charge], model: str, demand: Demand) -> tuple[Charge, ...]:
    """What one request asks of each quota: those over all models, and those of every pattern
    that covers its model.
    """
    return tuple(
        [
            _asked(one, demand)
            for one in quotas
            if one.key.model is None or covers(one.key.model, model)
        ]
    )


def standing(quotas: Iterable[Charge]) -> tuple[Charge, ...]:
    """Charges on every quota, to look at how they stand."""
    return tuple(_asked(one, _NOTHING) for one in quotas)


def over_allowance(asked: tuple[Charge, ...], tokens: Used) -> bool:
    """Whether that many tokens are more than the whole of a quota that can refuse."""
    return any(
        isinstance(charge.quota, Quota)
        and charge.unit in TOKEN_UNITS
        and not charge.shadow
        and tokens.of(charge.unit) > charge.quota.burst
        for charge in asked
    )


def headers(decisions: Decisions) -> dict[str, str]:
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``, and the same for
    ``input-tokens`` and ``output-tokens``; reset is in whole seconds.

    Of several quotas of a unit, the one with the least remaining is told. A unit without quota
    has none.
    """
    tightest: dict[Unit, Decision] = {}
    for charge, decision in decisions.items():
        known = tightest.get(charge.unit)
        if known is None or _tightness(decision) < _tightness(known):
            tightest[charge.unit] = decision
    told: dict[str, str] = {}
    for unit, (limit, remaining, reset) in _IN_HEADERS.items():
        if (least := tightest.get(unit)) is not None:
            told[limit] = str(least.limit)
            told[remaining] = str(least.remaining)
            told[reset] = str(ceil(least.reset_after))
    return told


def rejection(refused: Refused) -> Rejection:
    """The refusal as an error: EXCEEDS_ALLOWANCE where no wait would help, else RATE_LIMITED."""
    cost, decision = refused.which.cost, refused.decision
    name = title(refused.which.key)
    if decision.retry_after is None:
        return Rejection(
            Kind.EXCEEDS_ALLOWANCE,
            f"The request needs {cost} {refused.which.unit}, more than the whole allowance of "
            f"{decision.limit} {name}. A smaller prompt or maximum output would fit.",
        )
    wait = max(1, ceil(decision.retry_after))
    return Rejection(
        Kind.RATE_LIMITED,
        f"Rate limit reached for {name}: limit {decision.limit}, remaining "
        f"{decision.remaining}, requested {cost}. Try again in {wait} s.",
        retry_after=wait,
    )


def title(key: LimitKey) -> str:
    """A quota as an operator and a client know it."""
    return key.name if key.model is None else f"{key.name} for models {key.model}"


def _asked(one: Charge, demand: Demand) -> Charge:
    """What a request asks of a quota; ``one``, as it is, of those that count no tokens."""
    unit, quota = one.unit, one.quota
    if unit not in TOKEN_UNITS or isinstance(quota, Concurrency):
        return one
    cost = max(demand.sure.of(unit), min(demand.most.of(unit), quota.burst))
    return Charge(one.key, unit, quota, cost, one.shadow)


def _quotas(quotas: Quotas) -> Iterator[tuple[str, Unit, Quota | Concurrency]]:
    for rate, (name, unit, period) in _RATES.items():
        amount: int | None = getattr(quotas, rate)
        if amount is not None:
            yield name, unit, Quota(amount, period, quotas.bursts.get(rate, amount))
    if quotas.concurrent is not None:
        yield _SLOTS, Unit.SLOTS, Concurrency(quotas.concurrent)


def _tightness(decision: Decision) -> tuple[int, float]:
    return decision.remaining, -decision.reset_after
