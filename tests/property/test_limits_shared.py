"""Redis against memory, which is its model, under any sequence of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from fractions import Fraction
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import valkey_server
from coroutines import finished
from gateway.edge.tasks import Tasks
from gateway.limits.base import Charge, Concurrency, Lease, LimitKey, Refused, Unit, Used
from gateway.limits.gcra import Quota
from gateway.limits.memory import MemoryLimiter
from gateway.limits.remote.calls import Call, Reply
from gateway.limits.remote.clients import client_for
from gateway.limits.remote.limiter import RemoteLimiter
from gateway.limits.remote.link import Link, Trouble
from gateway.settings.store import parse_store

SMALL = st.integers(0, 200)
T = TypeVar("T")


class Listening(Link):
    """Remembers the server's clock as the last script saw it."""

    now = 0

    async def run(self, call: Call, not_after: float | None = None) -> Reply | Trouble:
        reply = await super().run(call, not_after)
        assert isinstance(reply, Reply), reply
        self.now = reply.now
        return reply


class MemoryAndServer(RuleBasedStateMachine):
    """Redis must do as memory does: memory is asked at the very instant of the server's clock.

    Time passes by making everything in the server older; memory's clock goes on by as much.
    """

    LEASE = 30.0
    QUOTAS = (
        ("requests", Unit.REQUESTS, Quota(7, 60.0, 3)),
        ("tokens", Unit.TOKENS, Quota(999_983, 3600.0, 100)),
        ("input", Unit.INPUT, Quota(10**7, 1.0, 5000)),
        ("output", Unit.OUTPUT, Quota(3, 86400.0, 40)),
        ("slots", Unit.SLOTS, Concurrency(3)),
        ("few", Unit.SLOTS, Concurrency(1)),
    )
    server: valkey_server.Server

    def __init__(self) -> None:
        super().__init__()
        with self.server.client() as client:
            client.flushall()
        self.loop = asyncio.new_event_loop()
        self.now = Fraction(0)
        self.passed = 0
        self.memory = MemoryLimiter(lambda: self.now)
        self.link = Listening(
            client_for(parse_store(self.server.url), 5.0),
            timeout=5.0,
            clock=self.loop.time,
            tasks=Tasks(),
            watch=valkey_server.Watch(),
        )
        self.remote = RemoteLimiter(
            self.link,
            admit_without_store=False,
            timeout=5.0,
            lease=self.LEASE,
            clock=self.loop.time,
            tasks=Tasks(),
            watch=valkey_server.Watch(),
        )
        self.held: list[tuple[Lease, Lease]] = []
        self.ended: list[tuple[Lease, Lease]] = []

    def ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What Redis says; memory's clock is then at the server's instant."""
        result = self.loop.run_until_complete(coroutine)
        self.now = Fraction(self.link.now, 10**12) + self.passed
        return result

    @rule(
        costs=st.lists(
            st.tuples(st.integers(0, len(QUOTAS) - 1), st.integers(0, 120), st.booleans()),
            min_size=1,
            max_size=len(QUOTAS),
            unique_by=lambda cost: cost[0],
        )
    )
    def take(self, costs: list[tuple[int, int, bool]]) -> None:
        charges = []
        for index, cost, shadow in costs:
            name, unit, quota = self.QUOTAS[index]
            units = cost % 3 if unit is Unit.SLOTS else cost
            charges.append(Charge(LimitKey("t", name), unit, quota, units, shadow))
        theirs = self.ask(self.remote.reserve(charges))
        ours = finished(self.memory.reserve(charges))
        assert type(theirs) is Refused or type(ours) is not Refused
        if isinstance(theirs, Refused):
            assert theirs == ours
            return
        assert not isinstance(ours, Refused)
        assert theirs.decisions == ours.decisions
        assert theirs.shadow_refusal == ours.shadow_refusal
        self.held.append((theirs, ours))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), used=st.one_of(st.none(), st.builds(Used, SMALL, SMALL)))
    def end(self, data: st.DataObject, used: Used | None) -> None:
        pair = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        theirs, ours = pair
        self.ask(theirs.release() if used is None else theirs.settle(used))
        finished(ours.release() if used is None else ours.settle(used))
        self.ended.append(pair)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        for lease in data.draw(st.sampled_from(self.ended)):
            self.loop.run_until_complete(lease.settle(Used(99, 99)))
            self.loop.run_until_complete(lease.release())

    @rule(seconds=st.integers(0, int(LEASE) - 1))
    def wait_within_leases(self, seconds: int) -> None:
        self.pass_time(seconds)
        self.loop.run_until_complete(self.remote.running.renew())

    @rule(seconds=st.integers(int(LEASE) + 1, 100_000))
    def lose_all_leases(self, seconds: int) -> None:
        """The process is gone: its slots come back, what it reserved stays charged."""
        self.pass_time(seconds)
        for _, ours in self.held:
            self.memory.give_back(
                [charge for charge in ours.decisions if charge.unit is Unit.SLOTS
                 and not (charge.shadow and ours.shadow_refusal)], None
            )  # fmt: skip
        for theirs, _ in self.held:
            self.remote.running.remove(theirs)
        self.held.clear()

    def pass_time(self, seconds: int) -> None:
        self.server.age(seconds)
        self.passed += seconds

    @invariant()
    def they_stand_alike(self) -> None:
        charges = [Charge(LimitKey("t", name), unit, quota, 0) for name, unit, quota in self.QUOTAS]
        theirs = self.ask(self.remote.peek(charges))
        assert theirs == finished(self.memory.peek(charges))

    @invariant()
    def no_key_stays_for_ever(self) -> None:
        assert self.server.without_end() == []

    def teardown(self) -> None:
        self.loop.run_until_complete(self.remote.close())
        self.loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[valkey_server.Server]:
    with valkey_server.server() as running:
        yield running


def test_row_28_a_server_decides_as_memory_does(server: valkey_server.Server) -> None:
    machine = type("Machine", (MemoryAndServer,), {"server": server})
    short = settings(
        max_examples=40,
        stateful_step_count=25,
        deadline=None,
        phases=[Phase.reuse, Phase.generate],  # shrinking by a real server takes minutes
    )
    run_state_machine_as_test(machine, settings=short)
