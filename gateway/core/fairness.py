"""Weighted fair queueing of tenants in front of one backend's capacity.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with several requests in service at
once, as in SFQ(D) (Jin, Chase and Kaur, SIGMETRICS 2004). Where v is the virtual time, F the finish
tag of the tenant's request before, c the cost and w the weight:

    start tag S = max(v, F)    finish tag F = S + c / w    v = S of the request let in last

The smallest start tag is next, and nothing passes it while it waits for room: what is small would
otherwise keep what is large out for ever. Over any time in which tenants f and g both have requests
waiting, the costs W let in differ by no more than their largest requests l:

    |W_f / w_f - W_g / w_g| <= l_f / w_f + l_g / w_g                      (theorem 1 of SFQ)

A tag is given when a request becomes its tenant's first, so one that leaves before costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from heapq import heapify, heappop, heappush

# What a request costs beside its prompt, in prompt tokens: about what a short answer keeps an
# engine busy, so that many requests without a prompt to speak of are no free ride.
REQUEST_COST = 256
HALF_LIFE = 30.0  # seconds after which an observed speed counts half


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be in flight (requests, prompt tokens) and how many requests may wait.

    ``None`` is no bound. A prompt over ``prompt_tokens`` runs when nothing else does.
    """

    requests: int | None
    prompt_tokens: int | None
    waiting: int
    waiting_per_tenant: int | None


class Reason(StrEnum):
    """Why a request is not kept waiting: fixed words for metrics."""

    MAX_WAIT = "max_wait"
    MAX_WAITING = "max_waiting"
    MAX_WAITING_PER_TENANT = "max_waiting_per_tenant"


class State(Enum):
    """Where a request is. It never goes back."""

    WAITING = 1
    RUNNING = 2
    OVER = 3


@dataclass(slots=True, eq=False)
class _Flow:
    """One tenant. ``tag`` is the start tag of its next request, or the finish tag of its last."""

    weight: float
    tag: float
    waiting: OrderedDict[Ticket, None] = field(default_factory=OrderedDict)
    cost: int = 0  # of all that wait

    @property
    def length(self) -> float:
        """Requests that wait, for its weight."""
        return len(self.waiting) / self.weight


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's place, waiting or running. ``tokens`` are those of its prompt."""

    flow: _Flow
    tokens: int
    state: State = State.WAITING

    @property
    def cost(self) -> int:
        """What it takes of its tenant's share."""
        return self.tokens + REQUEST_COST


class FairQueue:
    """Who runs next. ``admit`` after each ``join`` and ``leave`` keeps it work conserving."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.waiting = 0
        self.running = 0
        self.running_tokens = 0
        self._virtual = 0.0
        self._turn = 0  # settles equal tags: who became its tenant's first earlier
        self._flows: dict[str, _Flow] = {}
        self._heads: list[tuple[float, int, _Flow]] = []  # a heap: tenants with requests waiting

    def join(self, tenant: str, weight: float, tokens: int) -> Ticket:
        """A request comes last among its tenant's; ``weight`` holds for the tenant from now on."""
        flow = self._flows.get(tenant)
        if flow is None:
            flow = self._flows[tenant] = _Flow(weight, self._virtual)
        flow.weight = weight
        ticket = Ticket(flow, tokens)
        if not flow.waiting:
            flow.tag = max(flow.tag, self._virtual)
            self._line_up(flow)
        flow.waiting[ticket] = None
        flow.cost += ticket.cost
        self.waiting += 1
        return ticket

    def admit(self) -> list[Ticket]:
        """Those whose turn it is and who have room, in this order. They are now running."""
        admitted = []
        while self._heads:
            tag, _, flow = self._heads[0]
            ticket = next(iter(flow.waiting))
            if not self._has_room(ticket):
                break
            heappop(self._heads)
            self._take_out(ticket)
            self._virtual = tag
            flow.tag = tag + ticket.cost / flow.weight
            if flow.waiting:
                self._line_up(flow)
            ticket.state = State.RUNNING
            self.running += 1
            self.running_tokens += ticket.tokens
            admitted.append(ticket)
        return admitted

    def leave(self, ticket: Ticket) -> None:
        """A request gives its place up, whether it waits or runs; a second time does nothing."""
        if ticket.state is State.WAITING:
            self._take_out(ticket)
            if not ticket.flow.waiting:
                self._heads = [head for head in self._heads if head[2] is not ticket.flow]
                heapify(self._heads)
        elif ticket.state is State.RUNNING:
            self.running -= 1
            self.running_tokens -= ticket.tokens
        ticket.state = State.OVER
        if not self.waiting and not self.running:  # a busy period is over: all are equal again
            self._flows.clear()
            self._virtual = 0.0

    def excess(self, newcomer: Ticket) -> tuple[Ticket, Reason] | None:
        """Who must go, now that ``newcomer`` waits too; None where there is a place for it.

        Of a full queue that is the last of the tenant with most waiting for its weight, so that
        nobody can keep others out by filling it.
        """
        own, bounds = newcomer.flow, self.bounds
        if bounds.waiting_per_tenant is not None and len(own.waiting) > bounds.waiting_per_tenant:
            return newcomer, Reason.MAX_WAITING_PER_TENANT
        if self.waiting <= bounds.waiting:
            return None
        longest = max((flow for _, _, flow in self._heads), key=lambda flow: flow.length)
        if own.length >= longest.length:
            longest = own
        return next(reversed(longest.waiting)), Reason.MAX_WAITING

    def ahead_of_next(self, ticket: Ticket) -> float:
        """The cost let in before a further request of its tenant would be, if no other came."""
        flow = ticket.flow
        tag = max(flow.tag, self._virtual) + flow.cost / flow.weight
        others = (
            min(other.cost, max(0.0, tag - other.tag) * other.weight)
            for _, _, other in self._heads
            if other is not flow
        )
        return flow.cost + sum(others)

    def _has_room(self, ticket: Ticket) -> bool:
        if not self.running:
            return True
        requests, tokens = self.bounds.requests, self.bounds.prompt_tokens
        return (requests is None or self.running < requests) and (
            tokens is None or self.running_tokens + ticket.tokens <= tokens
        )

    def _line_up(self, flow: _Flow) -> None:
        self._turn += 1
        heappush(self._heads, (flow.tag, self._turn, flow))

    def _take_out(self, ticket: Ticket) -> None:
        del ticket.flow.waiting[ticket]
        ticket.flow.cost -= ticket.cost
        self.waiting -= 1


class Pace:
    """How fast a backend works its queue off: cost a second, recent times counting most.

    Only times in which requests wait are looked at; at others it could have done more. Times are
    seconds of one clock.
    """

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0
        self._since = 0.0

    def start(self, now: float) -> None:
        """The first request waits."""
        self._since = now

    def finished(self, cost: int, now: float) -> None:
        """A request ended while others waited."""
        passed = now - self._since
        kept = 0.5 ** (passed / HALF_LIFE)
        self._cost = self._cost * kept + cost
        self._seconds = self._seconds * kept + passed
        self._since = now

    def seconds_for(self, cost: float) -> float | None:
        """How long so much would take; None before anything was seen to finish."""
        return cost * self._seconds / self._cost if self._cost else None
