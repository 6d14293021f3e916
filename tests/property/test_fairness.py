"""Start-time fair queueing holds its theorems under any arrivals, departures and capacities."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fairness import Bounds, FairQueue, State, Ticket

WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5, "d": 1.0}
ROUNDING = 1e-6

sizes = st.one_of(st.integers(0, 50), st.integers(0, 100_000))
times = st.integers(1, 15)
# What happens, a number for it (tokens, or which), and how often in a row.
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abcd"), sizes, times),
        st.tuples(st.just("end"), st.integers(0, 10), times),
        st.tuples(st.just("abandon"), st.integers(0, 30), st.integers(1, 3)),
    ),
    min_size=5,
    max_size=40,
).map(lambda drawn: [(what, number) for what, number, often in drawn for _ in range(often)])
bounds = st.builds(
    Bounds,
    requests=st.one_of(st.none(), st.integers(1, 4)),
    prompt_tokens=st.one_of(st.none(), st.integers(1, 150_000)),
    waiting=st.just(10_000),
    waiting_per_tenant=st.none(),
)


@dataclass
class Run:
    """A queue, and what an observer would write down about it."""

    fair: FairQueue
    joined: dict[str, list[Ticket]] = field(default_factory=lambda: defaultdict(list))
    running: list[Ticket] = field(default_factory=list)
    let_in: list[tuple[str, int]] = field(default_factory=list)  # tenant and cost, in order
    # After each step: how many were let in so far, and who has requests waiting.
    moments: list[tuple[int, frozenset[str]]] = field(default_factory=list)

    def of(self, ticket: Ticket) -> str:
        return next(name for name, tickets in self.joined.items() if ticket in tickets)

    def waiting(self, name: str) -> list[Ticket]:
        return [ticket for ticket in self.joined[name] if ticket.state is State.WAITING]

    def step(self, what: str, number: int) -> None:
        if what in WEIGHTS:
            self.joined[what].append(self.fair.join(what, WEIGHTS[what], number))
        elif what == "end" and self.running:
            self.fair.leave(self.running.pop(number % len(self.running)))
        elif what == "abandon":
            waiting = [ticket for name in WEIGHTS for ticket in self.waiting(name)]
            if waiting:
                self.fair.leave(waiting[number % len(waiting)])
        # One after another, so that between two of them is a moment too.
        oldest = {name: self.waiting(name) for name in WEIGHTS}
        for ticket in self.fair.admit():
            name = self.of(ticket)
            assert ticket is oldest[name].pop(0)  # first in, first out
            self.let_in.append((name, ticket.cost))
            self.running.append(ticket)
            self._note(oldest)
        self._note(oldest)

    def _note(self, waiting: dict[str, list[Ticket]]) -> None:
        backlogged = frozenset(name for name, tickets in waiting.items() if tickets)
        self.moments.append((len(self.let_in), backlogged))


def ran(bounds: Bounds, steps: list[tuple[str, int]]) -> Run:
    run = Run(FairQueue(bounds))
    for what, number in steps:
        run.step(what, number)
    return run


@given(bounds, steps)
def test_service_of_two_backlogged_tenants_differs_by_no_more_than_theorem_1_says(bounds, steps):
    run = ran(bounds, steps)
    largest = {
        name: max((ticket.cost for ticket in run.joined[name]), default=0) for name in WEIGHTS
    }
    for f, g in (("a", "b"), ("a", "c"), ("b", "c"), ("a", "d")):
        allowed = largest[f] / WEIGHTS[f] + largest[g] / WEIGHTS[g] + ROUNDING
        for stretch in stretches(run, {f, g}):
            # The difference of a difference: its range over the stretch bounds every interval.
            balance, seen = 0.0, [0.0]
            for name, cost in stretch:
                share = cost / WEIGHTS[name] if name in (f, g) else 0.0
                balance += share if name == f else -share
                seen.append(balance)
            assert max(seen) - min(seen) <= allowed


def stretches(run: Run, tenants: set[str]) -> list[list[tuple[str, int]]]:
    """What was let in during each time in which all of ``tenants`` had requests waiting."""
    found: list[list[tuple[str, int]]] = []
    began: int | None = None
    for count, backlogged in [*run.moments, (len(run.let_in), frozenset())]:
        if tenants <= backlogged:
            began = count if began is None else began
            until = count
        elif began is not None:
            found.append(run.let_in[began:until])
            began = None
    return found


@given(bounds, steps)
def test_no_tenant_starves(bounds, steps):
    """While one is its tenant's first, another tenant gets at most r_g * l_f / r_f + l_g."""
    run = ran(bounds, steps)
    largest = {
        name: max((ticket.cost for ticket in run.joined[name]), default=0) for name in WEIGHTS
    }
    for f, weight in WEIGHTS.items():
        for stretch in stretches(run, {f}):
            since: dict[str, int] = defaultdict(int)
            for name, cost in stretch:
                since[name] += cost
                if name == f:
                    since.clear()
                for g, cost_of_g in since.items():
                    allowed = WEIGHTS[g] * largest[f] / weight + largest[g]
                    assert cost_of_g <= allowed + ROUNDING * allowed


@given(bounds, steps)
def test_capacity_is_kept_and_never_idles_beside_one_that_fits(bounds, steps):
    run = Run(FairQueue(bounds))
    for what, number in steps:
        run.step(what, number)
        fair = run.fair
        assert fair.running == len(run.running)
        assert fair.running_tokens == sum(ticket.tokens for ticket in run.running)
        assert fair.waiting == sum(len(run.waiting(name)) for name in WEIGHTS)
        if bounds.requests is not None:
            assert fair.running <= bounds.requests
        if bounds.prompt_tokens is not None and fair.running > 1:
            assert fair.running_tokens <= bounds.prompt_tokens
        if fair.waiting:
            assert fair.running  # work conserving: nothing waits for nothing
            assert not fair.admit()
            firsts = [run.waiting(name)[0] for name in WEIGHTS if run.waiting(name)]
            assert any(not fits(bounds, fair, ticket) for ticket in firsts)


def fits(bounds: Bounds, fair: FairQueue, ticket: Ticket) -> bool:
    free = bounds.requests is None or fair.running < bounds.requests
    room = bounds.prompt_tokens
    return free and (room is None or fair.running_tokens + ticket.tokens <= room)


@given(bounds, steps)
def test_everyone_is_let_in_in_the_end_and_nothing_is_left(bounds, steps):
    run = ran(bounds, steps)
    while run.running:
        run.step("end", 0)
    assert (run.fair.waiting, run.fair.running, run.fair.running_tokens) == (0, 0, 0)
    assert all(ticket.state is State.OVER for tickets in run.joined.values() for ticket in tickets)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 12)), min_size=1, max_size=60),
    st.integers(0, 20),
)
def test_places_go_to_whoever_has_fewest_waiting(arrivals, places):
    """However many one sends, others with less waiting for their weight get in beside it."""
    fair = FairQueue(Bounds(1, None, places, None))
    fair.join("running", 1.0, 1)
    fair.admit()
    waiting: dict[str, int] = defaultdict(int)
    for name, count in arrivals:
        for _ in range(count):
            ticket = fair.join(name, WEIGHTS[name], 1)
            waiting[name] += 1
            excess = fair.excess(ticket)
            if excess is None:
                continue
            victim, _ = excess
            loser = max(waiting, key=lambda one: (waiting[one] / WEIGHTS[one], one == name))
            assert victim is ticket if loser == name else victim is not ticket
            fair.leave(victim)
            waiting[loser] -= 1
        assert fair.waiting == sum(waiting.values()) <= places
