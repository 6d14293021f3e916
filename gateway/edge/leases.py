"""Taking a request's share of its tenant's quotas, and settling it exactly once."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from gateway.core import settlement
from gateway.core.tenants import Tenant
from gateway.edge.counting import Measurer
from gateway.edge.exchange import Exchange
from gateway.edge.relay import ClientGone
from gateway.edge.tasks import Tasks
from gateway.limits import policy
from gateway.limits.base import Charge, Decisions, Lease, Limiter, Refused, Used
from gateway.types import Bounded, Counted, ParsedRequest

SETTLE = "settle quotas"


class Leases:
    """What the requests of this process hold of their tenants' quotas."""

    def __init__(self, limiter: Limiter, tasks: Tasks) -> None:
        self._limiter = limiter
        self._tasks = tasks
        self._in_flight: dict[str, int] = {}  # by tenant, the one that came last at the end
        self._settling: set[asyncio.Task[None]] = set()

    def hold(
        self, tenant: Tenant, parsed: ParsedRequest, exchange: Exchange, measurer: Measurer
    ) -> AbstractAsyncContextManager[None]:
        """Reserve before, settle after with what the engine reported, give back what was not used.

        Settling that waits is left to a task: neither the client nor a cancellation may wait for
        the store or cut it short. Raises ``Rejection`` (RATE_LIMITED, EXCEEDS_ALLOWANCE,
        STORE_UNAVAILABLE); a refused request charges nothing.
        """
        return _Held(self, _Request(tenant, parsed, exchange, measurer))

    async def take(self, request: _Request) -> Lease:
        """Reserve what ``request`` may need. Raises as ``hold``."""
        exchange = request.exchange
        taken = await self._limiter.reserve(await request.charges())
        exchange.headers.update(policy.headers(taken.decisions))
        if isinstance(taken, Refused):
            exchange.limited_by = policy.title(taken.which.key)
            raise policy.rejection(taken)
        if taken.shadow_refusal is not None:
            exchange.limited_by = policy.title(taken.shadow_refusal.key)
        tenant = request.tenant.id
        self._in_flight[tenant] = self._in_flight.pop(tenant, 0) + 1
        return taken

    def end(self, request: _Request, lease: Lease) -> None:
        """Settle it, at once or by a task."""
        request.exchange.users.begin()
        settling = self._settle(request, lease)
        if lease.at_once and request.settles_at_once:
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

    async def _settle(self, request: _Request, lease: Lease) -> None:
        try:
            await request.settle(lease)
        finally:
            self._in_flight[request.tenant.id] -= 1
            request.exchange.users.end()


class _Held:
    """What ``Leases.hold`` gives: a class, since a generator's context costs five times as much."""

    __slots__ = ("_lease", "_leases", "_request")

    def __init__(self, leases: Leases, request: _Request) -> None:
        self._leases = leases
        self._request = request

    async def __aenter__(self) -> None:
        self._lease = await self._leases.take(self._request)

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: object
    ) -> None:
        if kind is not None:
            self._request.failed(kind)
        self._leases.end(self._request, self._lease)


class _Request:
    """One request that holds quotas, and what its end has to be known by."""

    __slots__ = ("_client_gone", "_measurer", "_parsed", "_refused", "exchange", "tenant")

    def __init__(
        self, tenant: Tenant, parsed: ParsedRequest, exchange: Exchange, measurer: Measurer
    ) -> None:
        self.tenant = tenant
        self.exchange = exchange
        self._parsed = parsed
        self._measurer = measurer
        self._client_gone = False
        self._refused = False

    async def charges(self) -> tuple[Charge, ...]:
        """What it asks for. A bound over a whole allowance proves nothing: then it is counted."""
        asked, most = self._demanded()
        if not isinstance(self.exchange.length, Bounded) or not policy.over_allowance(asked, most):
            return asked
        await self._count_exactly()
        return self._demanded()[0]

    def _demanded(self) -> tuple[tuple[Charge, ...], Used]:
        parsed, tenant = self._parsed, self.tenant
        demand = settlement.demand(parsed, self.exchange.length, tenant.policy)
        return policy.charges(tenant.quotas, parsed.model, demand), demand.most

    def failed(self, kind: type[BaseException]) -> None:
        """It was ended by an exception of this kind."""
        if issubclass(kind, asyncio.CancelledError | ClientGone):
            self._client_gone = True
        elif issubclass(kind, Exception):
            self._refused = True

    @property
    def settles_at_once(self) -> bool:
        """Whether ``settle`` waits for nothing but the store."""
        return self.exchange.reading_on is None and not self._counts

    async def settle(self, lease: Lease) -> None:
        """Once the engine is done with it too. A cancelled wait settles with what is known."""
        reading_on = self.exchange.reading_on
        try:
            if reading_on is not None:
                await asyncio.wait([reading_on])
            if self._counts:
                await self._count_exactly()
        finally:
            used = settlement.charge(
                self._parsed, self.exchange.length, self.tenant.policy, self._ended()
            )
            await (lease.release() if used is None else lease.settle(used))

    @property
    def _counts(self) -> bool:
        """Whether it has to be counted: the engine told no usage, and a bound charges too much."""
        if not isinstance(self.exchange.length, Bounded) or self._refused:
            return False
        seen = self.exchange.observation
        return seen is None or seen.usage is None or seen.usage.prompt_tokens is None

    async def _count_exactly(self) -> None:
        counted = await self._measurer.exact(self._parsed, self.tenant.id)
        if isinstance(counted, Counted):  # else the bound is still the best there is
            self.exchange.length = counted

    def _ended(self) -> settlement.Ended:
        exchange = self.exchange
        return settlement.Ended(
            seen=exchange.observation,
            status=exchange.status,
            bytes_out=exchange.bytes_out,
            sent=exchange.forwarded_at is not None,
            refused=self._refused,
            client_gone=self._client_gone,
        )
