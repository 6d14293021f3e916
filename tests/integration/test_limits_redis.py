"""The shared limiter under concurrency, cancellation and several processes, on a real server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

import limits_traffic
import valkey_server
from gateway.limits.base import Charge, Concurrency, LimitKey, Refused, Unit, Used
from gateway.limits.gcra import Quota

DAY = 86400.0


@pytest.fixture(scope="module")
def running() -> Iterator[valkey_server.Server]:
    with valkey_server.server() as started:
        yield started


@pytest.fixture
def server(running: valkey_server.Server) -> Iterator[valkey_server.Server]:
    yield running
    assert running.without_end() == []  # row 30
    with running.client() as client:
        client.flushall()


def requests(limit: int = 5, tenant: str = "t", period: float = DAY) -> Charge:
    return Charge(LimitKey(tenant, "requests"), Unit.REQUESTS, Quota(limit, period, limit), 1)


def tokens(cost: int, limit: int = 100, tenant: str = "t") -> Charge:
    return Charge(LimitKey(tenant, "tokens"), Unit.TOKENS, Quota(limit, DAY, limit), cost)


def slot(limit: int = 1, tenant: str = "t") -> Charge:
    return Charge(LimitKey(tenant, "slots"), Unit.SLOTS, Concurrency(limit), 1)


async def test_row_28_limiters_of_several_processes_count_together(
    server: valkey_server.Server,
) -> None:
    async with (
        valkey_server.limiter_on(server.url) as one,
        valkey_server.limiter_on(server.socket_url) as other,
    ):
        outcomes = await asyncio.gather(
            *(limiter.reserve([slot(2)]) for limiter in (one, other) * 3)
        )
        assert sum(not isinstance(outcome, Refused) for outcome in outcomes) == 2


async def test_row_39_the_wait_is_true_on_the_real_clock(server: valkey_server.Server) -> None:
    fast = requests(5, period=2.0)  # one every 0.4 s
    async with valkey_server.limiter_on(server.url) as limiter:
        asked = time.monotonic()
        while not isinstance(refused := await limiter.reserve([fast]), Refused):
            asked = time.monotonic()
        told = time.monotonic()
        wait = refused.decision.retry_after
        assert 0 < wait <= 0.4
        await asyncio.sleep(max(0.0, wait - 0.05))
        early = await limiter.reserve([fast])
        if time.monotonic() - asked < wait - 0.01:
            assert isinstance(early, Refused)
        if isinstance(early, Refused):  # else this process slept longer than it had to
            await asyncio.sleep(max(0.0, told + wait - time.monotonic()))
            assert not isinstance(await limiter.reserve([fast]), Refused)


async def test_row_32_a_refused_call_changes_no_value(server: valkey_server.Server) -> None:
    async with valkey_server.limiter_on(server.url) as limiter:
        await limiter.reserve([requests(5), tokens(90), slot(3)])
        before = server.keys()
        for refused in ([requests(5), tokens(11)], [slot(1), requests(5)], [tokens(101)]):
            assert isinstance(await limiter.reserve(refused), Refused)
        assert server.keys() == before


async def test_row_33_a_running_lease_outlives_its_term_and_a_dead_one_does_not(
    server: valkey_server.Server,
) -> None:
    async with valkey_server.limiter_on(server.url, lease=3.0) as alive:
        kept = await alive.reserve([slot(2)])
        async with valkey_server.limiter_on(server.url, lease=3.0) as dead:
            await dead.reserve([slot(2)])  # and never ends it
        assert isinstance(await alive.reserve([slot(2)]), Refused)
        await asyncio.sleep(3.1)
        assert not isinstance(await alive.reserve([slot(2)]), Refused)
        assert isinstance(await alive.reserve([slot(2)]), Refused)  # the kept one is there still
        await kept.release()
        assert not isinstance(await alive.reserve([slot(2)]), Refused)


async def test_row_33_a_lost_slot_is_not_taken_from_who_has_it_now(
    server: valkey_server.Server,
) -> None:
    watch = valkey_server.Watch()
    async with (
        valkey_server.limiter_on(server.url, lease=30.0, watch=watch) as slow,
        valkey_server.limiter_on(server.url) as other,
    ):
        lost = await slow.reserve([slot(1)])
        server.age(31)
        held = await other.reserve([slot(1)])
        await slow._limiter.running.renew()
        await slow._limiter.running.renew()
        assert watch.slots_lost == 1
        await lost.release()
        assert isinstance(await other.reserve([slot(1)]), Refused)
        await held.release()
        assert not isinstance(await slow.reserve([slot(1)]), Refused)


async def test_row_33_a_lost_slot_that_is_free_is_taken_again(
    server: valkey_server.Server,
) -> None:
    async with valkey_server.limiter_on(server.url) as limiter:
        await limiter.reserve([slot(1)])
        server.age(31)
        await limiter._limiter.running.renew()
        assert isinstance(await limiter.reserve([slot(1)]), Refused)


async def test_row_33_a_renewal_never_revives_what_is_over(server: valkey_server.Server) -> None:
    async with valkey_server.limiter_on(server.url) as limiter:
        running = limiter._limiter.running
        lease = await limiter.reserve([slot(1)])
        renewal = asyncio.create_task(running.renew())
        while not lease.doubtful:  # the renewal is on its way
            await asyncio.sleep(0)
        await lease.release()
        await renewal
        running.add(lease)  # as if its release had overtaken the renewal
        await running.renew()
        assert not isinstance(await limiter.reserve([slot(1)]), Refused)


async def test_row_34_a_lease_ended_over_and_over_counts_once(
    server: valkey_server.Server,
) -> None:
    async with valkey_server.limiter_on(server.url) as limiter:
        lease = await limiter.reserve([tokens(60), slot(2)])
        repeated = limiter._limiter
        for _ in range(5):  # what a retry after an answer that was lost does
            await repeated.end(lease, Used(10, 0))
        assert (await limiter.peek([tokens(1)]))[tokens(1)].remaining == 90


async def test_row_45_a_storm_of_cancellations_crosses_no_answers_and_leaks_nothing(
    server: valkey_server.Server,
) -> None:
    seeded = random.Random(45)
    limits = {f"tenant-{n}": 1000 + n for n in range(50)}
    seen: list[str] = []

    async def call(limiter, tenant: str) -> None:
        charges = [requests(limits[tenant], tenant), slot(limits[tenant], tenant)]
        lease = await limiter.reserve(charges)
        try:
            seen.append(tenant)
            assert [lease.decisions[charge].limit for charge in charges] == [limits[tenant]] * 2
            assert lease.decisions[charges[0]].remaining < limits[tenant]
            await asyncio.sleep(seeded.random() * 0.02)
        finally:
            await lease.release()

    async with valkey_server.limiter_on(server.url, timeout=5.0) as limiter:
        callers = [
            asyncio.create_task(call(limiter, seeded.choice(list(limits)))) for _ in range(500)
        ]
        while not all(caller.done() for caller in callers):
            await asyncio.sleep(0.001)
            for caller in seeded.sample(callers, 20):
                caller.cancel()
        ends = await asyncio.gather(*callers, return_exceptions=True)
        failed = [end for end in ends if isinstance(end, BaseException)]
        assert all(isinstance(end, asyncio.CancelledError) for end in failed), failed
        assert failed
        assert seen
        # Withdrawals and releases are on their way; then every tenant has everything again.
        for _ in range(200):
            standing = {
                tenant: await limiter.peek([requests(limit, tenant), slot(limit, tenant)])
                for tenant, limit in limits.items()
            }
            if all(
                decision.remaining == limits[tenant]
                for tenant, decisions in standing.items()
                for decision in decisions.values()
            ):
                break
            await asyncio.sleep(0.02)
        else:
            pytest.fail(f"not given back: {server.keys()}")
        assert server.keys_like("*:lease:*") == []


def test_row_27_eight_processes_together_admit_what_one_may(
    server: valkey_server.Server,
) -> None:
    """Four workers of two instances: never above burst + rate x window, and 99 % of one bucket."""
    for run in limits_traffic.runs(server.url, processes=8, rounds=3):
        assert run.least <= run.admitted <= run.most, run.seed
        assert run.asked > 1.5 * run.admitted  # else the limit was not what held them
