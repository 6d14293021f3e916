"""Live use for operators: who is shown, what is told, and what a dead store cannot hold up."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.tenants import Key, Tenant, TenantDirectory
from gateway.edge.leases import Leases
from gateway.edge.tasks import Tasks
from gateway.edge.usage import AT_ONCE, SHOWN, live_use, merged
from gateway.errors import Kind, Rejection
from gateway.limits.base import Charge, LimitKey, Unit
from gateway.limits.gcra import Quota
from gateway.limits.memory import MemoryLimiter
from gateway.settings import Policy, Quotas
from waiting import PATIENCE

POLICY = Policy(requests_per_minute=10, per_model={"glm-*": Quotas(concurrent=3)}, shadow=True)


class Known(Leases):
    """Leases with a given past."""

    def __init__(self, limiter, in_flight):
        super().__init__(limiter, Tasks())
        self._in_flight = dict(in_flight)


def directory(*names, policy=POLICY):
    return TenantDirectory({name: Key(Tenant(name, policy)) for name in names})


async def use(leases, found, seconds=5.0):
    return await live_use(leases, found, seconds)


async def test_every_quota_is_told_with_what_is_used():
    limiter = MemoryLimiter(lambda: 0.0)
    taken = Charge(LimitKey("a", "requests per minute"), Unit.REQUESTS, Quota(10, 60.0, 10), 4)
    await limiter.reserve([taken])
    told = await use(Known(limiter, {"a": 2}), directory("a"))
    assert told == {
        "shown": [
            {
                "id": "a",
                "in_flight": 2,
                "quotas": [
                    {
                        "name": "requests per minute",
                        "models": None,
                        "shadow": True,
                        "limit": 10,
                        "used": 4,
                        "remaining": 6,
                        "reset_s": 24.0,
                    },
                    {
                        "name": "concurrent requests",
                        "models": "glm-*",
                        "shadow": True,
                        "limit": 3,
                        "used": 0,
                        "remaining": 3,
                        "reset_s": 0.0,
                    },
                ],
            }
        ],
        "left_out": 0,
    }


async def test_the_busiest_come_first_then_who_called_last_then_by_name():
    leases = Known(MemoryLimiter(lambda: 0.0), {"early": 0, "busy": 2, "late": 0, "gone": 5})
    told = await use(leases, directory("z", "early", "late", "busy", "a"))
    assert [tenant["id"] for tenant in told["shown"]] == ["busy", "late", "early", "a", "z"]


async def test_of_many_tenants_some_are_left_out_and_that_is_said():
    names = [f"t{number:03}" for number in range(SHOWN + 7)]
    leases = Known(MemoryLimiter(lambda: 0.0), {names[-1]: 1})
    told = await use(leases, directory(*names))
    assert len(told["shown"]) == SHOWN
    assert told["shown"][0]["id"] == names[-1]
    assert told["left_out"] == 7


class Dead:
    def __init__(self, *, hangs):
        self._hangs = hangs

    async def peek(self, charges):
        if self._hangs:
            await asyncio.Event().wait()
        raise Rejection(Kind.STORE_UNAVAILABLE, "no")


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_dead_store_tells_no_quotas_and_holds_up_nothing(hangs):
    leases = Known(Dead(hangs=hangs), {"a": 2})
    async with asyncio.timeout(PATIENCE):
        told = await use(leases, directory("a", "b"), 0.02)
    assert [tenant["quotas"] for tenant in told["shown"]] == [None, None]
    assert told["shown"][0]["in_flight"] == 2


async def test_what_the_store_told_in_time_is_kept():
    class Slow(MemoryLimiter):
        async def peek(self, charges):
            if charges[0].key.tenant == "late":
                await asyncio.Event().wait()
            return await super().peek(charges)

    leases = Known(Slow(lambda: 0.0), {"late": 1})
    told = await use(leases, directory("late", "b", "c"), 0.05)
    assert [(each["id"], each["quotas"] is None) for each in told["shown"]] == [
        ("late", True),
        ("b", False),
        ("c", False),
    ]


async def test_the_store_is_asked_a_few_questions_at_once():
    class Counting(MemoryLimiter):
        asked = most = 0

        async def peek(self, charges):
            self.asked += 1
            self.most = max(self.most, self.asked)
            await asyncio.sleep(0)
            self.asked -= 1
            return await super().peek(charges)

    limiter = Counting(lambda: 0.0)
    told = await use(Known(limiter, {}), directory(*map(str, range(50))))
    assert all(each["quotas"] for each in told["shown"])
    assert 1 < limiter.most <= AT_ONCE


def test_several_processes_are_told_as_one():
    def part(left_out, *tenants):
        shown = [{"id": i, "in_flight": n, "quotas": quotas} for i, n, quotas in tenants]
        return {"shown": shown, "left_out": left_out}

    quotas = [{"name": "requests per minute"}]
    one = part(3, ("a", 1, None), ("b", 2, []))
    other = part(3, ("a", 4, quotas), ("c", 0, []))
    assert merged([one, other]) == part(2, ("a", 5, quotas), ("b", 2, []), ("c", 0, []))
    assert merged([]) == part(0)
