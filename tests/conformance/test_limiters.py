"""What every limiter store must do alike: memory, and Redis as one server, cluster and sentinel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial

import pytest

import valkey_server
from gateway.limits.base import (
    Charge,
    Concurrency,
    Lease,
    Limiter,
    LimitKey,
    Refused,
    Unit,
    Unlimited,
    Used,
)
from gateway.limits.gcra import Quota
from gateway.limits.memory import MemoryLimiter

DAY = 86400.0  # nothing refills while a test runs
STORES = ("memory", "server", "socket", "sentinel", "cluster")


@dataclass(frozen=True)
class Stand:
    """A limiter under test, and the passing of time for it."""

    limiter: Limiter
    wait: Callable[[int], None]  # whole seconds

    async def take(self, *charges: Charge) -> Lease:
        outcome = await self.limiter.reserve(charges)
        assert not isinstance(outcome, Refused), outcome.decision
        return outcome

    async def fail(self, *charges: Charge) -> Refused:
        outcome = await self.limiter.reserve(charges)
        assert isinstance(outcome, Refused)
        return outcome

    async def left(self, charge: Charge) -> int:
        return (await self.limiter.peek([charge]))[charge].remaining


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, tuple[str, valkey_server.Server]]]:
    """For each kind of store its URL, and the server that holds the keys."""
    with ExitStack() as stack:
        one = stack.enter_context(valkey_server.server())
        node = stack.enter_context(valkey_server.cluster())
        watcher = stack.enter_context(valkey_server.sentinel(one))
        yield {
            "server": (one.url, one),
            "socket": (one.socket_url, one),
            "sentinel": (watcher.url.replace("redis", "redis+sentinel") + "/main", one),
            "cluster": (node.url.replace("redis", "redis+cluster"), node),
        }


@pytest.fixture(params=STORES)
async def stand(
    request: pytest.FixtureRequest, servers: dict[str, tuple[str, valkey_server.Server]]
) -> AsyncIterator[Stand]:
    if request.param == "memory":
        now = [1000.0]

        def wait(seconds: int) -> None:
            now[0] += seconds

        yield Stand(MemoryLimiter(lambda: now[0]), wait)
        return
    url, server = servers[request.param]
    async with AsyncExitStack() as stack:
        limiter = await stack.enter_async_context(valkey_server.limiter_on(url, timeout=2.0))
        yield Stand(limiter, server.age)
    # row 30: no key without an end, whatever the test did
    assert server.without_end() == []
    with server.client() as client:
        client.flushall()


def requests(limit: int = 5, tenant: str = "t", *, shadow: bool = False) -> Charge:
    key = LimitKey(tenant, "requests a day")
    return Charge(key, Unit.REQUESTS, Quota(limit, DAY, limit), 1, shadow)


def tokens(cost: int, limit: int = 100, tenant: str = "t", *, shadow: bool = False) -> Charge:
    key = LimitKey(tenant, "tokens a day")
    return Charge(key, Unit.TOKENS, Quota(limit, DAY, limit), cost, shadow)


def slot(limit: int = 1, tenant: str = "t", *, shadow: bool = False) -> Charge:
    key = LimitKey(tenant, "concurrent requests")
    return Charge(key, Unit.SLOTS, Concurrency(limit), 1, shadow)


async def test_nothing_to_charge_is_always_taken(stand: Stand) -> None:
    lease = await stand.take()
    await lease.settle(Used(10, 0))
    assert lease.decisions == {}
    assert await stand.limiter.peek([]) == {}


@pytest.mark.parametrize("asked", [requests(5), slot(5)], ids=["bucket", "slots"])
async def test_row_27_a_hundred_at_once_admit_exactly_five(stand: Stand, asked: Charge) -> None:
    outcomes = await asyncio.gather(*(stand.limiter.reserve([asked]) for _ in range(100)))
    taken = [outcome for outcome in outcomes if not isinstance(outcome, Refused)]
    assert sorted(lease.decisions[asked].remaining for lease in taken) == [0, 1, 2, 3, 4]


async def test_row_27_tokens_at_once_stay_within_the_limit(stand: Stand) -> None:
    costs = (58, 175, 99, 60, 41, 42)
    outcomes = await asyncio.gather(*(stand.limiter.reserve([tokens(cost)]) for cost in costs))
    admitted = [
        cost
        for cost, outcome in zip(costs, outcomes, strict=True)
        if not isinstance(outcome, Refused)
    ]
    assert admitted
    assert sum(admitted) <= 100


async def test_row_32_a_call_refused_by_one_quota_uses_no_other(stand: Stand) -> None:
    first = await stand.take(requests(2), slot())
    for _ in range(5):
        assert (await stand.fail(requests(2), slot())).which == slot()
    await first.settle(Used(0, 0))
    await stand.take(requests(2), slot())


async def test_a_refusal_tells_every_quota_as_it_stands(stand: Stand) -> None:
    await stand.take(requests(5), tokens(90))
    outcome = await stand.fail(requests(5), tokens(20))
    assert outcome.which == tokens(20)
    assert outcome.decision == outcome.decisions[tokens(20)]
    assert (outcome.decision.limit, outcome.decision.remaining) == (100, 10)
    assert outcome.decision.retry_after == pytest.approx(8640.0, abs=10.0)
    assert outcome.decisions[requests(5)].remaining == 4


async def test_the_refusal_to_wait_longest_for_is_told(stand: Stand) -> None:
    await stand.take(requests(1), tokens(100))
    assert (await stand.fail(requests(1), tokens(1))).which == requests(1)
    assert (await stand.fail(requests(1), tokens(101))).which == tokens(101)  # impossible
    assert (await stand.fail(tokens(101))).decision.impossible


async def test_row_39_refused_before_the_wait_that_is_told_and_admitted_after(
    stand: Stand,
) -> None:
    await stand.take(requests(1), tokens(100))
    wait = (await stand.fail(requests(1), tokens(1))).decision.retry_after
    assert wait == pytest.approx(DAY, abs=10.0)
    stand.wait(int(wait) - 10)
    await stand.fail(requests(1), tokens(1))
    stand.wait(11)
    await stand.take(requests(1), tokens(1))


async def test_settling_charges_what_was_used(stand: Stand) -> None:
    lease = await stand.take(requests(5), tokens(80))
    assert (lease.decisions[requests(5)].remaining, lease.decisions[tokens(80)].remaining) == (
        4,
        20,
    )
    await lease.settle(Used(10, 20))
    assert await stand.left(tokens(1)) == 70
    assert await stand.left(requests(5)) == 4


async def test_settling_more_than_reserved_leaves_a_debt(stand: Stand) -> None:
    await (await stand.take(tokens(10))).settle(Used(150, 0))
    assert (await stand.fail(tokens(1))).decision.remaining == 0
    stand.wait(int(DAY * 0.5))
    await stand.fail(tokens(1))
    stand.wait(int(DAY * 0.01))
    await stand.take(tokens(1))


async def test_row_26_a_debt_of_any_size_is_kept(stand: Stand) -> None:
    await (await stand.take(tokens(1))).settle(Used(10**30, 0))
    assert (await stand.fail(tokens(1))).decision.remaining == 0


async def test_row_34_a_released_call_leaves_no_trace(stand: Stand) -> None:
    for _ in range(100):
        lease = await stand.take(requests(5), tokens(100), slot())
        await lease.release()
    assert await stand.left(requests(5)) == 5
    assert await stand.left(tokens(1)) == 100


@pytest.mark.parametrize("first", ["settle", "release"])
async def test_row_34_a_lease_ends_once(stand: Stand, first: str) -> None:
    await stand.take(tokens(40))  # so that a second refund would show
    lease = await stand.take(requests(5), tokens(50), slot(2))
    await (lease.settle(Used(20, 0)) if first == "settle" else lease.release())
    left = await stand.left(tokens(1))
    await asyncio.gather(*(end() for end in (lease.release, partial(lease.settle, Used(0, 0))) * 3))
    assert await stand.left(tokens(1)) == left
    assert left == (40 if first == "settle" else 60)


async def test_row_33_a_slot_comes_back_however_the_call_ends(stand: Stand) -> None:
    for end in ("settle", "release"):
        leases = [await stand.take(slot(4)) for _ in range(4)]
        assert (await stand.fail(slot(4))).decision.retry_after == 1.0
        for lease in leases:
            await (lease.settle(Used(1, 0)) if end == "settle" else lease.release())
    assert await stand.left(slot(4)) == 4


async def test_row_33_a_late_release_frees_no_one_elses_slot(stand: Stand) -> None:
    early = await stand.take(slot())
    await early.release()
    await stand.take(slot())
    await early.release()
    await stand.fail(slot())


async def test_slots_are_told_with_what_is_left(stand: Stand) -> None:
    lease = await stand.take(slot(3))
    assert (lease.decisions[slot(3)].limit, lease.decisions[slot(3)].remaining) == (3, 2)
    await stand.take(slot(3))
    await stand.take(slot(3))
    assert (await stand.fail(slot(3))).decision.remaining == 0


async def test_tenants_and_models_do_not_see_each_other(stand: Stand) -> None:
    await stand.take(requests(1, "a"), slot(1, "a"))
    await stand.take(requests(1, "b"), slot(1, "b"))
    await stand.fail(requests(1, "a"))
    for model in ("", "m", "m:n"):
        key = LimitKey("a", "requests a day", model)
        await stand.take(Charge(key, Unit.REQUESTS, Quota(1, DAY, 1), 1))


async def test_a_shadow_quota_counts_but_never_refuses(stand: Stand) -> None:
    shadowed = requests(2, shadow=True)
    leases = [await stand.take(shadowed) for _ in range(5)]
    assert [lease.shadow_refusal for lease in leases] == [None, None, *[shadowed] * 3]
    assert [lease.decisions[shadowed].remaining for lease in leases] == [1, 0, 0, 0, 0]


async def test_what_a_shadow_would_refuse_charges_no_shadow_but_what_is_enforced(
    stand: Stand,
) -> None:
    shadowed, slots = tokens(60, shadow=True), slot(9, shadow=True)
    await stand.take(requests(5), shadowed, slots)
    over = await stand.take(requests(5), shadowed, slots)
    assert over.shadow_refusal == shadowed
    assert over.decisions[slots].remaining == 8
    await over.settle(Used(1000, 0))  # nothing was taken of the shadow: nothing is settled there
    assert await stand.left(tokens(1)) == 40
    assert await stand.left(requests(5)) == 3


async def test_an_enforced_refusal_takes_nothing_of_a_shadow(stand: Stand) -> None:
    await stand.take(requests(1))
    await stand.fail(requests(1), tokens(60, shadow=True))
    assert await stand.left(tokens(1)) == 100


async def test_an_impossible_shadow_still_lets_the_call_through(stand: Stand) -> None:
    assert (await stand.take(tokens(101, shadow=True))).shadow_refusal is not None


async def test_buckets_and_slots_in_use_are_kept(stand: Stand) -> None:
    await stand.take(tokens(100))
    stand.wait(3600)
    await stand.fail(tokens(10))
    stand.wait(int(DAY))
    assert await stand.left(tokens(1)) == 100


async def test_after_a_reload_the_share_that_was_used_stays_used(stand: Stand) -> None:
    lease = await stand.take(tokens(90, limit=100), slot(3))
    assert await stand.left(tokens(1, limit=50)) == 5
    await stand.fail(slot(1))
    await lease.release()  # what was taken under the old quota is given back as it was taken
    assert await stand.left(tokens(1, limit=50)) == 50


@pytest.mark.parametrize(
    ("unit", "left"), [(Unit.TOKENS, 70), (Unit.INPUT, 90), (Unit.OUTPUT, 80), (Unit.REQUESTS, 50)]
)
async def test_each_unit_is_charged_with_its_part(stand: Stand, unit: Unit, left: int) -> None:
    charge = Charge(LimitKey("t", "any"), unit, Quota(100, DAY, 100), 50)
    await (await stand.take(charge)).settle(Used(10, 20))
    assert await stand.left(charge) == left


async def test_a_peek_takes_nothing(stand: Stand) -> None:
    await stand.take(tokens(30), slot(2))
    asked = [tokens(99), slot(2), requests(5)]
    first = await stand.limiter.peek(asked)
    assert [first[charge].remaining for charge in asked] == [70, 1, 5]
    assert all(decision.allowed for decision in first.values())
    again = await stand.limiter.peek(asked)
    assert [again[charge].remaining for charge in asked] == [70, 1, 5]


async def test_what_only_a_caller_can_get_wrong(stand: Stand) -> None:
    faulty: dict[str, list[Charge]] = {
        "the same key": [tokens(1), tokens(2)],
        "several tenants": [tokens(1, tenant="a"), requests(tenant="b")],
        "cannot be negative": [tokens(-1)],
    }
    for told, charges in faulty.items():
        with pytest.raises(ValueError, match=told):
            await stand.limiter.reserve(charges)


async def test_slots_of_several_at_once(stand: Stand) -> None:
    pair = Charge(LimitKey("t", "slots"), Unit.SLOTS, Concurrency(3), 2)
    lease = await stand.take(pair)
    assert (await stand.fail(pair)).decision.remaining == 1
    await lease.release()
    assert await stand.left(pair) == 3


async def test_an_admitted_lease_is_not_an_unlimited_one(stand: Stand) -> None:
    assert not isinstance(await stand.take(requests()), Unlimited)
