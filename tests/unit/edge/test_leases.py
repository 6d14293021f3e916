"""Reserving before and settling once after, whatever ends a request and however slow the store."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.tenants import Tenant
from gateway.edge.exchange import Exchange
from gateway.edge.leases import Leases
from gateway.edge.relay import ClientGone
from gateway.edge.tasks import Tasks
from gateway.errors import Kind, Rejection
from gateway.limits.base import Used
from gateway.limits.memory import MemoryLimiter
from gateway.settings import Policy
from gateway.types import (
    Bounded,
    Counted,
    Ending,
    Observation,
    ParsedRequest,
    TextPrompt,
    Unverifiable,
    Usage,
)

POLICY = Policy(tokens_per_minute=1000, concurrent=2, reserve_output_tokens=10)
TENANT = Tenant("t", POLICY)
REQUEST = ParsedRequest("d", "/p", b"x" * 50, {}, "m", stream=False, prompt=TextPrompt(("a",)))
ANSWER = Observation(Usage(100, 7), Ending.COMPLETE, bytes_in=9, response_id="x")


class Store(MemoryLimiter):
    """A memory limiter whose leases take their time to settle, and remember it."""

    def __init__(self):
        super().__init__(lambda: 0.0)
        self.ends = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def reserve(self, charges):
        lease = await super().reserve(charges)
        return Slow(lease, self) if hasattr(lease, "settle") else lease


class Slow:
    at_once = False

    def __init__(self, lease, store):
        self.decisions, self.shadow_refusal = lease.decisions, lease.shadow_refusal
        self._lease, self._store = lease, store

    async def settle(self, used):
        await self._store.go_on.wait()
        self._store.ends.append(used)
        await self._lease.settle(used)

    async def release(self):
        await self._store.go_on.wait()
        self._store.ends.append(None)
        await self._lease.release()


class Measurer:
    def __init__(self, count=None):
        self.count = count
        self.asked = 0

    async def exact(self, request, tenant):
        self.asked += 1
        return Counted((self.count,)) if self.count is not None else Unverifiable("engine")


@pytest.fixture
async def tasks():
    made = Tasks()
    yield made
    await made.cancel()


@pytest.fixture
def store():
    return Store()


COUNTED = Counted((100,))


def exchange(length=COUNTED):
    made = Exchange("req_1", 0.0, "/p")
    made.length = length
    return made


def answered(made, seen=ANSWER):
    made.forwarded_at, made.status, made.bytes_out, made.observation = 1.0, 200, 9, seen


async def held(leases, made, end, measurer=None):
    """One request, ended by what ``end`` does."""
    async with leases.hold(TENANT, REQUEST, made, measurer or Measurer()):
        end()


def raising(error, before=lambda: None):
    def end():
        before()
        raise error

    return end


async def test_an_answer_is_settled_by_a_task_and_nobody_waits_for_the_store(store, tasks):
    leases = Leases(store, tasks)
    store.go_on.clear()
    made = exchange()
    async with leases.hold(TENANT, REQUEST, made, Measurer()):
        assert leases.in_flight("t") == 1
        assert made.headers["x-ratelimit-remaining-tokens"] == "890"
        answered(made)
    assert store.ends == []
    assert leases.in_flight("t") == 1
    assert leases.busy
    assert len(tasks) == 1  # draining waits for it
    await leases.settled(0.01)
    assert leases.busy
    store.go_on.set()
    await leases.settled(5)
    assert store.ends == [Used(100, 7)]
    assert not leases.busy


async def test_what_waits_for_nothing_is_settled_at_once(tasks):
    limiter = MemoryLimiter(lambda: 0.0)
    leases = Leases(limiter, tasks)
    made = exchange()
    async with leases.hold(TENANT, REQUEST, made, Measurer()):
        answered(made)
    assert len(tasks) == 0
    assert not leases.busy
    standing = {charge.key.name: held for charge, held in (await leases.standing(TENANT)).items()}
    assert standing["tokens per minute"].remaining == 893
    assert standing["concurrent requests"].remaining == 2


async def test_a_cancelled_request_settles_once_and_stays_cancelled(store, tasks):
    leases = Leases(store, tasks)
    made = exchange()
    sent = asyncio.Event()

    async def request():
        async with leases.hold(TENANT, REQUEST, made, Measurer()):
            made.forwarded_at = 1.0
            sent.set()
            await asyncio.sleep(30)

    task = asyncio.ensure_future(request())
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await leases.settled(5)
    assert store.ends == [Used(100, 0)]


@pytest.mark.parametrize(
    ("error", "used"),
    [
        (ClientGone(), Used(100, 7)),
        (Rejection(Kind.WITHHELD, "no"), None),
        (RuntimeError("a bug"), None),
    ],
)
async def test_what_ends_a_request_passes_and_decides_the_charge(store, tasks, error, used):
    leases = Leases(store, tasks)
    made = exchange()
    with pytest.raises(type(error)):
        await held(leases, made, raising(error, lambda: answered(made)))
    await leases.settled(5)
    assert store.ends == [used]


async def test_a_refusal_is_raised_with_its_headers_and_holds_nothing(store, tasks):
    leases = Leases(store, tasks)
    made = exchange(Counted((2000,)))
    with pytest.raises(Rejection) as caught:
        await held(leases, made, raising(AssertionError()))
    assert caught.value.kind is Kind.EXCEEDS_ALLOWANCE
    assert made.headers["x-ratelimit-remaining-tokens"] == "1000"
    assert not leases.busy
    assert store.ends == []


async def test_an_engine_that_is_read_out_is_waited_for(store, tasks):
    leases = Leases(store, tasks)
    made = exchange()
    go_on = asyncio.Event()

    async def read_on():
        await go_on.wait()
        made.observation = ANSWER

    def leaves():
        made.forwarded_at, made.reading_on = 1.0, tasks.spawn(read_on(), "drain")
        raise ClientGone

    with pytest.raises(ClientGone):
        await held(leases, made, leaves)
    await leases.settled(0.01)
    assert store.ends == []
    go_on.set()
    await leases.settled(5)
    assert store.ends == [Used(100, 7)]


async def test_stopping_while_an_engine_is_read_out_settles_with_what_is_known(store, tasks):
    leases = Leases(store, tasks)
    made = exchange()

    def leaves():
        made.forwarded_at, made.reading_on = 1.0, tasks.spawn(asyncio.sleep(30), "drain")
        raise ClientGone

    with pytest.raises(ClientGone):
        await held(leases, made, leaves)
    await asyncio.sleep(0)
    await tasks.cancel()
    assert store.ends == [Used(100, 0)]
    assert not leases.busy


UNTOLD = Observation(None, Ending.COMPLETE, events=1, bytes_in=9)


@pytest.mark.parametrize(("count", "charged"), [(900, 900), (None, 3000)])
async def test_a_bound_over_the_allowance_is_counted_first(store, tasks, count, charged):
    """And where it cannot be, the request is not impossible for it: it may end in debt."""
    leases = Leases(store, tasks)
    made = exchange(Bounded(3000, 3000))
    measurer = Measurer(count)
    await held(leases, made, lambda: answered(made, UNTOLD), measurer)
    await leases.settled(5)
    assert measurer.asked >= 1
    assert store.ends == [Used(charged, 1)]


async def test_a_bound_that_counts_over_the_allowance_is_refused(store, tasks):
    made = exchange(Bounded(3000, 3000))
    with pytest.raises(Rejection) as caught:
        await held(Leases(store, tasks), made, raising(AssertionError()), Measurer(1001))
    assert caught.value.kind is Kind.EXCEEDS_ALLOWANCE
    assert made.length == Counted((1001,))


async def test_a_bound_within_the_allowance_is_not_counted_unless_the_engine_tells_nothing(
    store, tasks
):
    leases = Leases(store, tasks)
    for seen, asked in ((ANSWER, 0), (Observation(None, Ending.COMPLETE, events=3), 1)):
        measurer = Measurer(60)
        made = exchange(Bounded(300, 300))
        async with leases.hold(TENANT, REQUEST, made, measurer):
            answered(made, seen)
        await leases.settled(5)
        assert measurer.asked == asked
    assert store.ends == [Used(100, 7), Used(60, 3)]


async def test_recency_follows_who_called_last(store, tasks):
    leases = Leases(store, tasks)
    for name in "abca":
        async with leases.hold(Tenant(name, Policy()), REQUEST, exchange(), Measurer()):
            pass
    await leases.settled(5)
    places = leases.recency()
    assert sorted(places, key=places.get) == ["b", "c", "a"]
    assert leases.in_flight("nobody") == 0


async def test_how_a_tenant_stands_takes_nothing(store, tasks):
    leases = Leases(store, tasks)
    for _ in range(2):
        stands = {c.key.name: d.remaining for c, d in (await leases.standing(TENANT)).items()}
        assert stands == {"tokens per minute": 1000, "concurrent requests": 2}
