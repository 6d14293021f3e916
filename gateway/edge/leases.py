"""Taking a request's share of its tenant's quotas, and settling it exactly once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.core.tenants import Tenant
from gateway.edge.exchange import Exchange
from gateway.limits import policy
from gateway.limits.base import Lease, Limiter, Refused, Used
from gateway.types import AtLeast, Bounded, Counted, ParsedRequest, PromptLength, Unverifiable


@asynccontextmanager
async def leased(
    limiter: Limiter, tenant: Tenant, parsed: ParsedRequest, exchange: Exchange
) -> AsyncIterator[None]:
    """Reserve before, settle after with what the engine reported, give back what was not used.

    Raises ``Rejection`` (RATE_LIMITED, EXCEEDS_ALLOWANCE); a refused request charges nothing.
    """
    asked = policy.charges(tenant.id, tenant.policy, _estimate(tenant, parsed, exchange))
    taken = await limiter.reserve(asked)
    exchange.headers.update(policy.headers(taken.decisions))
    if isinstance(taken, Refused):
        raise policy.rejection(taken)
    try:
        yield
    finally:
        await _settle(taken, exchange)


async def _settle(lease: Lease, exchange: Exchange) -> None:
    """Nothing from the engine: everything back. Else what it reported, or our own count."""
    seen = exchange.observation
    if seen is None or (exchange.status >= 400 and seen.usage is None):
        await lease.release()
        return
    usage = seen.usage
    prompt = usage.prompt_tokens if usage else None
    output = usage.completion_tokens if usage else None
    await lease.settle(
        Used(
            _tokens(exchange.length) if prompt is None else prompt,
            seen.events if output is None else output,
        )
    )


def _estimate(tenant: Tenant, parsed: ParsedRequest, exchange: Exchange) -> int:
    prompt = _tokens(exchange.length)
    if not parsed.generates:
        return prompt
    return policy.estimate(prompt, parsed.max_output_tokens, parsed.choices, tenant.policy)


def _tokens(length: PromptLength | None) -> int:
    """The tokens to charge for: a count, else its bound; a prompt let through uncounted is 0."""
    match length:
        case Counted() | Bounded():
            return length.total
        case AtLeast(longest):
            return longest
        case Unverifiable() | None:
            return 0
