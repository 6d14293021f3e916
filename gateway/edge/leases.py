"""Taking a request's share of its tenant's quotas, and settling it exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.core import settlement
from gateway.core.tenants import Tenant
from gateway.edge.counting import Measurer
from gateway.edge.exchange import Exchange
from gateway.edge.relay import ClientGone
from gateway.edge.tasks import Tasks
from gateway.limits import policy
from gateway.limits.base import Charge, Decisions, Lease, Limiter, Refused
from gateway.types import Bounded, Counted, ParsedRequest

SETTLE = "settle quotas"


class Leases:
    """What the requests of this process hold of their tenants' quotas."""

    def __init__(self, limiter: Limiter, tasks: Tasks) -> None:
        self._limiter = limiter
        self._tasks = tasks
        self._in_flight: dict[str, int] = {}  # by tenant, the one that came last at the end
        self._settling: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def hold(
        self, tenant: Tenant, parsed: ParsedRequest, exchange: Exchange, measurer: Measurer
    ) -> AsyncIterator[None]:
        """Reserve before, settle after with what the engine reported, give back what was not used.

        Settling that waits is left to a task: neither the client nor a cancellation may wait for
        the store or cut it short. Raises ``Rejection`` (RATE_LIMITED, EXCEEDS_ALLOWANCE,
        STORE_UNAVAILABLE); a refused request charges nothing.
        """
        asked = await _asked(tenant, parsed, exchange, measurer)
        taken = await self._limiter.reserve(asked)
        exchange.headers.update(policy.headers(taken.decisions))
        if isinstance(taken, Refused):
            exchange.limited_by = policy.title(taken.which.key)
            raise policy.rejection(taken)
        if taken.shadow_refusal is not None:
            exchange.limited_by = policy.title(taken.shadow_refusal.key)
        self._in_flight[tenant.id] = self._in_flight.pop(tenant.id, 0) + 1
        request = _Request(taken, tenant, parsed, exchange, measurer)
        try:
            yield
        except (asyncio.CancelledError, ClientGone):
            request.client_gone = True
            raise
        except Exception:
            request.refused = True
            raise
        finally:
            exchange.users.begin()
            settling = self._settle(request)
            if request.settles_at_once:
                self._tasks.run(settling, SETTLE)
            else:
                task = self._tasks.spawn(settling, SETTLE)
                self._settling.add(task)
                task.add_done_callback(self._settling.discard)

    def in_flight(self, tenant: str) -> int:
        """Requests of a tenant that this process serves now."""
        return self._in_flight.get(tenant, 0)

    def running(self) -> dict[str, int]:
        """Requests that this process serves now, of each tenant that has any."""
        return {tenant: number for tenant, number in self._in_flight.items() if number}

    def recency(self) -> dict[str, int]:
        """Tenants that ever called, each with a number that is higher the later it did."""
        return {tenant: place for place, tenant in enumerate(self._in_flight)}

    @property
    def busy(self) -> bool:
        """Whether anything is held or still to be told to the store."""
        return any(self._in_flight.values())

    async def standing(self, tenant: Tenant) -> Decisions:
        """How each quota of a tenant stands. Raises ``Rejection`` (STORE_UNAVAILABLE)."""
        return await self._limiter.peek(policy.standing(tenant.quotas))

    async def settled(self, seconds: float) -> None:
        """Wait, so long at most, until what has ended is told to the store."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=seconds)

    async def _settle(self, request: _Request) -> None:
        try:
            await request.settle()
        finally:
            self._in_flight[request.tenant.id] -= 1
            request.exchange.users.end()


class _Request:
    """One request's lease, and what its end has to be known by."""

    def __init__(
        self,
        lease: Lease,
        tenant: Tenant,
        parsed: ParsedRequest,
        exchange: Exchange,
        measurer: Measurer,
    ) -> None:
        self.tenant = tenant
        self.client_gone = False
        self.refused = False
        self._lease = lease
        self._parsed = parsed
        self.exchange = exchange
        self._measurer = measurer

    @property
    def settles_at_once(self) -> bool:
        """Whether ``settle`` waits for nothing."""
        return self._lease.at_once and self.exchange.reading_on is None and not self._counts

    async def settle(self) -> None:
        """Once the engine is done with it too. A cancelled wait settles with what is known."""
        reading_on = self.exchange.reading_on
        try:
            if reading_on is not None:
                await asyncio.wait([reading_on])
            if self._counts:
                await _count_exactly(self.exchange, self._parsed, self.tenant, self._measurer)
        finally:
            await self._tell()

    async def _tell(self) -> None:
        used = settlement.charge(
            self._parsed, self.exchange.length, self.tenant.policy, self._ended()
        )
        await (self._lease.release() if used is None else self._lease.settle(used))

    @property
    def _counts(self) -> bool:
        """Whether it has to be counted: the engine told no usage, and a bound charges too much."""
        seen = self.exchange.observation
        untold = seen is None or seen.usage is None or seen.usage.prompt_tokens is None
        return untold and not self.refused and isinstance(self.exchange.length, Bounded)

    def _ended(self) -> settlement.Ended:
        exchange = self.exchange
        return settlement.Ended(
            seen=exchange.observation,
            status=exchange.status,
            bytes_out=exchange.bytes_out,
            sent=exchange.forwarded_at is not None,
            refused=self.refused,
            client_gone=self.client_gone,
        )


async def _asked(
    tenant: Tenant, parsed: ParsedRequest, exchange: Exchange, measurer: Measurer
) -> tuple[Charge, ...]:
    """The charges. A bound over a whole allowance proves nothing: then the prompt is counted."""
    demand = settlement.demand(parsed, exchange.length, tenant.policy)
    asked = policy.charges(tenant.quotas, parsed.model, demand)
    bounded = isinstance(exchange.length, Bounded)
    if not bounded or not policy.over_allowance(asked, demand.most):
        return asked
    await _count_exactly(exchange, parsed, tenant, measurer)
    demand = settlement.demand(parsed, exchange.length, tenant.policy)
    return policy.charges(tenant.quotas, parsed.model, demand)


async def _count_exactly(
    exchange: Exchange, parsed: ParsedRequest, tenant: Tenant, measurer: Measurer
) -> None:
    counted = await measurer.exact(parsed, tenant.id)
    if isinstance(counted, Counted):  # else the bound is still the best there is
        exchange.length = counted
