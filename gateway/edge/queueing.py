"""Waiting for a backend's turn: the fair queue's requests as futures on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from math import ceil
from typing import Protocol

from gateway.core.fairness import Bounds, FairQueue, Pace, Reason, State, Ticket
from gateway.core.tenants import Tenant
from gateway.edge.exchange import Exchange, Stage
from gateway.edge.metrics import Metrics
from gateway.errors import Kind, Rejection
from gateway.settings import queue as written

LONGEST_RETRY = 3600  # seconds: an estimate beyond is none
_WHY: Mapping[Reason, str] = {
    Reason.MAX_WAIT: "The engine is busy: the request waited in its queue as long as it may.",
    Reason.MAX_WAITING: "The engine is busy and the queue for it is full.",
    Reason.MAX_WAITING_PER_TENANT: "The engine is busy, and as many requests of this key as may "
    "wait in the queue for it do.",
}


class Queue:
    """The requests of one backend: those that wait for room and those that have it."""

    def __init__(
        self, backend: str, bounds: written.Queue, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._backend = backend
        self._max_wait = bounds.max_wait
        self._metrics = metrics
        self._clock = clock
        self._pace = Pace()
        # Of those that wait: None lets them run.
        self._outcomes: dict[Ticket, asyncio.Future[Rejection | None]] = {}
        self.fair = FairQueue(
            Bounds(
                bounds.concurrent,
                bounds.prompt_tokens,
                bounds.max_waiting,
                bounds.max_waiting_per_tenant,
            )
        )

    def join(self, tenant: Tenant, tokens: int) -> Ticket:
        """A place: running at once where there is room and nobody's turn is before.

        Raises ``Rejection`` (BACKEND_BUSY) where it would have to wait and there is no place left.
        """
        ticket = self.fair.join(tenant.id, tenant.policy.weight, tokens)
        self._admit()
        if ticket.state is State.WAITING:
            if self.fair.waiting == 1:
                self._pace.start(self._clock())
            self._keep_bounds(ticket)
        return ticket

    async def turn(self, ticket: Ticket) -> None:
        """Wait until it may run. Raises ``Rejection`` (BACKEND_BUSY); its place is then gone."""
        loop = asyncio.get_running_loop()
        outcome = self._outcomes[ticket] = loop.create_future()
        timer = loop.call_later(self._max_wait, self._expire, ticket)
        try:
            refusal = await outcome
        finally:
            timer.cancel()
            del self._outcomes[ticket]
        if refusal is not None:
            raise refusal

    def leave(self, ticket: Ticket) -> None:
        """Give the place up, waiting or running, and let in who comes next. Once is enough."""
        if ticket.state is State.RUNNING and self.fair.waiting:
            self._pace.finished(ticket.cost, self._clock())
        self.fair.leave(ticket)
        self._admit()

    def description(self) -> dict[str, int]:
        """What waits and what is in flight, for operators."""
        fair = self.fair
        return {
            "waiting": fair.waiting,
            "in_flight": fair.running,
            "prompt_tokens_in_flight": fair.running_tokens,
        }

    def _admit(self) -> None:
        for ticket in self.fair.admit():
            self._resolve(ticket, None)

    def _resolve(self, ticket: Ticket, refusal: Rejection | None) -> None:
        outcome = self._outcomes.get(ticket)  # none yet, of one that is joining
        if outcome is not None and not outcome.done():  # cancelled: it is about to leave
            outcome.set_result(refusal)

    def _expire(self, ticket: Ticket) -> None:
        if not self._outcomes[ticket].done():
            self._turn_away(ticket, Reason.MAX_WAIT)

    def _keep_bounds(self, newcomer: Ticket) -> None:
        excess = self.fair.excess(newcomer)
        if excess is None:
            return
        refusal = self._turn_away(*excess)
        if excess[0] is newcomer:
            raise refusal

    def _turn_away(self, ticket: Ticket, reason: Reason) -> Rejection:
        self._metrics.queue_refusals.labels(self._backend, reason).inc()
        self.leave(ticket)
        wait = self._retry_after(ticket)
        refusal = Rejection(
            Kind.BACKEND_BUSY, f"{_WHY[reason]} Try again in {wait} s.", retry_after=wait
        )
        self._resolve(ticket, refusal)
        return refusal

    def _retry_after(self, ticket: Ticket) -> int:
        """Whole seconds until the tenant's next request would come to its turn."""
        seconds = self._pace.seconds_for(self.fair.ahead_of_next(ticket))
        estimate = self._max_wait if seconds is None else seconds
        return ceil(min(max(estimate, 1.0), LONGEST_RETRY))


class Queued(Protocol):
    """What of a backend is needed here. ``waiting`` are its requests without room yet."""

    queue: Queue | None
    waiting: int


def queued(
    backend: Queued, tenant: Tenant, exchange: Exchange
) -> AbstractAsyncContextManager[bool | None]:
    """Room at the backend while the block runs, waited for in fair turns; without a queue, nothing.

    Its value says whether the request had to wait. Where the engine's answer is still read when
    the block ends (``exchange.reading_on``), the room is given back at the end of that.
    Raises ``Rejection`` (BACKEND_BUSY).
    """
    queue = backend.queue
    return nullcontext() if queue is None else _room(backend, queue, tenant, exchange)


@asynccontextmanager
async def _room(
    backend: Queued, queue: Queue, tenant: Tenant, exchange: Exchange
) -> AsyncIterator[bool]:
    exchange.queued = 0.0
    ticket = queue.join(tenant, _tokens(exchange, queue.fair.bounds))
    try:
        waits = ticket.state is State.WAITING
        if waits:
            await _turn(backend, queue, ticket, exchange)
        yield waits
    finally:
        if exchange.reading_on is None:
            queue.leave(ticket)
        else:
            exchange.reading_on.add_done_callback(lambda _: queue.leave(ticket))


async def _turn(backend: Queued, queue: Queue, ticket: Ticket, exchange: Exchange) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    backend.waiting += 1
    try:
        await queue.turn(ticket)
    finally:
        backend.waiting -= 1
        ended = loop.time()
        exchange.queued = ended - began
        exchange.stages.append(Stage("queue", began, ended))


def _tokens(exchange: Exchange, bounds: Bounds) -> int:
    most = exchange.most_tokens
    return most if most is not None else bounds.prompt_tokens or 0
