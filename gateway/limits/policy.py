"""From a tenant's policy to charges, and from decisions to what the client is told."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil

from gateway.errors import Kind, Rejection
from gateway.limits.base import Charge, Concurrency, Decisions, LimitKey, Refused, Unit
from gateway.limits.gcra import Decision, Quota
from gateway.settings import Policy

_MINUTE = 60.0
_DAY = 86400.0
_IN_HEADERS = (Unit.REQUESTS, Unit.TOKENS)


def estimate(
    prompt_tokens: int, max_output_tokens: int | None, choices: int, policy: Policy
) -> int:
    """Tokens to reserve: the prompt once, and the output each of ``choices`` answers may have.

    Where the request sets no maximum, the policy's ``reserve_output_tokens`` stands for it.
    """
    output = policy.reserve_output_tokens if max_output_tokens is None else max_output_tokens
    return prompt_tokens + output * choices


def charges(tenant: str, policy: Policy, tokens: int) -> tuple[Charge, ...]:
    """What one request of ``tokens`` tokens asks of each quota in the policy."""
    return tuple(
        Charge(LimitKey(tenant, name), unit, quota, cost, policy.shadow)
        for name, unit, quota, cost in _quotas(policy, tokens)
    )


def headers(decisions: Decisions) -> dict[str, str]:
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``; reset is in whole seconds.

    Of two quotas of a unit, the one with less remaining is told. A unit without quota has none.
    """
    told: dict[str, str] = {}
    for unit in _IN_HEADERS:
        of_unit = (decision for charge, decision in decisions.items() if charge.unit is unit)
        tightest = min(of_unit, key=_tightness, default=None)
        if tightest is not None:
            told |= {
                f"x-ratelimit-limit-{unit}": str(tightest.limit),
                f"x-ratelimit-remaining-{unit}": str(tightest.remaining),
                f"x-ratelimit-reset-{unit}": str(ceil(tightest.reset_after)),
            }
    return told


def rejection(refused: Refused) -> Rejection:
    """The refusal as an error: EXCEEDS_ALLOWANCE where no wait would help, else RATE_LIMITED."""
    name, cost, decision = refused.which.key.name, refused.which.cost, refused.decision
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


def _quotas(policy: Policy, tokens: int) -> Iterator[tuple[str, Unit, Quota | Concurrency, int]]:
    if (amount := policy.requests_per_minute) is not None:
        yield "requests per minute", Unit.REQUESTS, _bucket(amount, _MINUTE), 1
    if (amount := policy.tokens_per_minute) is not None:
        yield "tokens per minute", Unit.TOKENS, _bucket(amount, _MINUTE), tokens
    if (amount := policy.tokens_per_day) is not None:
        yield "tokens per day", Unit.TOKENS, _bucket(amount, _DAY), tokens
    if (amount := policy.concurrent) is not None:
        yield "concurrent requests", Unit.SLOTS, Concurrency(amount), 1


@lru_cache(maxsize=4096)
def _bucket(amount: int, period: float) -> Quota:
    """A quota whose burst is its whole amount; made once a policy, not once a request."""
    return Quota(amount, period, amount)


def _tightness(decision: Decision) -> tuple[int, float]:
    return decision.remaining, -decision.reset_after
