"""Waiting for a turn: what is woken, who is turned away, and that places are given up once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from types import SimpleNamespace

import pytest

from gateway.core.fairness import State
from gateway.edge.exchange import Exchange
from gateway.edge.metrics import Metrics
from gateway.edge.queueing import Queue, queued
from gateway.errors import Kind, Rejection
from gateway.settings.queue import Queue as Written
from gateway.types import Bounded, Counted, Unverifiable


def tenant(name="t", weight=1.0):
    return SimpleNamespace(id=name, policy=SimpleNamespace(weight=weight))


def queue(**written):
    written = {"concurrent": 1, **written}
    clock = SimpleNamespace(now=0.0)
    return Queue("b", Written(**written), Metrics(), lambda: clock.now), clock


def backend(queue):
    return SimpleNamespace(queue=queue, waiting=0)


def exchange(length=None, limit=None):
    return Exchange("r", 0.0, "/", length=Counted((5,)) if length is None else length, limit=limit)


def waiting(one, *, tenant=tenant()):  # noqa: B008 - never changed
    """A request on its way through the queue, as a task."""
    story = exchange()

    async def request():
        async with queued(one, tenant, story) as waited:
            assert waited
            await asyncio.sleep(0)

    task = asyncio.ensure_future(request())
    task.story = story
    return task


async def steps(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


def idle(one):
    return (one.fair.waiting, one.fair.running, one.fair.running_tokens) == (0, 0, 0)


async def test_without_a_queue_nothing_happens():
    story = exchange()
    async with queued(backend(None), tenant(), story) as waited:
        assert waited is None
    assert story.queued is None


async def test_with_room_a_request_passes_without_a_step_of_the_loop():
    one, _ = queue()
    story = exchange()
    async with queued(backend(one), tenant(), story) as waited:
        assert waited is False
        assert one.description() == {"waiting": 0, "in_flight": 1, "prompt_tokens_in_flight": 5}
    assert story.queued == 0.0
    assert idle(one)


async def test_a_place_given_up_lets_the_next_in():
    one, _ = queue()
    held = one.join(tenant(), 1)
    front = backend(one)
    first, second = waiting(front), waiting(front)
    await steps()
    assert (front.waiting, one.fair.waiting) == (2, 2)
    one.leave(held)
    await asyncio.gather(first, second)
    assert front.waiting == 0
    assert first.story.queued > 0
    assert idle(one)


@pytest.mark.parametrize("steps_between", [0, 1])
async def test_a_client_that_leaves_as_its_turn_comes_takes_no_place(steps_between):
    one, _ = queue()
    held = one.join(tenant(), 1)
    leaving, staying = waiting(backend(one)), waiting(backend(one))
    await steps()
    if steps_between:  # its turn has come, but it has not run yet
        one.leave(held)
        leaving.cancel()
    else:  # it is cancelled, but has not left yet
        leaving.cancel()
        one.leave(held)
    await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert idle(one)


async def test_who_leaves_while_waiting_is_gone_at_once():
    one, _ = queue()
    held = one.join(tenant(), 1)
    front = backend(one)
    leaving = waiting(front)
    await steps()
    leaving.cancel()
    await steps()
    assert (one.fair.waiting, front.waiting) == (0, 0)
    one.leave(held)
    assert idle(one)


async def test_a_wait_has_an_end_and_says_when_to_come_again():
    one, _ = queue(max_wait="20ms")
    held = one.join(tenant(), 1)
    refused = waiting(backend(one))
    with pytest.raises(Rejection) as refusal:
        await refused
    assert refusal.value.kind is Kind.BACKEND_BUSY
    assert "queue" in refusal.value.message
    assert refusal.value.retry_after == 1
    assert refused.story.queued >= 0.02
    assert one.fair.waiting == 0
    one.leave(held)
    assert idle(one)


async def test_the_end_of_a_wait_does_not_undo_a_turn_that_has_come():
    one, _ = queue(max_wait="1m")
    held = one.join(tenant(), 1)
    lucky = waiting(backend(one))
    await steps()
    one._max_wait = 0.0
    one.leave(held)
    [ticket] = one._outcomes
    one._expire(ticket)  # the timer, in the step between
    assert ticket.state is State.RUNNING
    await lucky
    assert idle(one)


async def test_a_turn_that_came_ends_the_timer(monkeypatch):
    loop, timers = asyncio.get_running_loop(), []
    real = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda *call: timers.append(real(*call)) or timers[-1])
    one, _ = queue(max_wait="1m")
    held = one.join(tenant(), 1)
    lucky = waiting(backend(one))
    await steps()
    assert [timer.cancelled() for timer in timers] == [False]
    one.leave(held)
    await lucky
    assert [timer.cancelled() for timer in timers] == [True]


async def test_without_places_to_wait_a_busy_backend_refuses_at_once():
    one, _ = queue(max_waiting=0, max_wait="1m")
    async with queued(backend(one), tenant(), exchange()):
        with pytest.raises(Rejection) as refusal:
            one.join(tenant(), 1)
    assert "full" in refusal.value.message
    assert refusal.value.retry_after == 60  # nothing was seen to finish: as long as one may wait
    assert idle(one)


async def test_a_full_queue_turns_away_the_last_of_whoever_has_most_waiting():
    one, _ = queue(max_waiting=3)
    front = backend(one)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(queued(front, tenant("x"), exchange()))
        flood = [waiting(front, tenant=tenant("flood")) for _ in range(3)]
        await steps()
        late = waiting(front, tenant=tenant("late"))
        await steps()
        with pytest.raises(Rejection) as refusal:
            flood[2].result()
        assert "full" in refusal.value.message
        assert not late.done()
    await asyncio.gather(*flood[:2], late)
    assert idle(one)


async def test_a_tenants_own_places():
    one, _ = queue(max_waiting_per_tenant=1)
    async with queued(backend(one), tenant("x"), exchange()):
        only = waiting(backend(one))
        await steps()
        with pytest.raises(Rejection) as refusal:
            one.join(tenant(), 1)
        assert "this key" in refusal.value.message
    await only
    assert idle(one)


async def test_refusals_are_counted_by_reason():
    one, _ = queue(max_waiting=1, max_waiting_per_tenant=1, max_wait="10ms")
    metrics = one._metrics
    async with queued(backend(one), tenant("x"), exchange()):
        slow = waiting(backend(one))
        await steps()
        for name in ("t", "other"):
            with suppress(Rejection):
                one.join(tenant(name), 1)
        await asyncio.wait([slow])
    for reason in ("max_wait", "max_waiting", "max_waiting_per_tenant"):
        labels = {"backend": "b", "reason": reason}
        counted = metrics.registry.get_sample_value("poolgate_queue_refusals_total", labels)
        assert counted == 1, reason
    slow.exception()


async def test_retry_after_follows_what_is_ahead_and_how_fast_it_goes():
    one, clock = queue(max_waiting=2)
    first, *_ = [one.join(tenant(), 744) for _ in range(3)]  # each costs 1000
    clock.now = 10.0
    one.leave(first)
    one.join(tenant(), 744)
    with pytest.raises(Rejection) as refusal:
        one.join(tenant(), 744)
    assert refusal.value.retry_after == 20  # two wait, and one took 10 s
    with pytest.raises(Rejection) as refusal:
        one.join(tenant(weight=1000.0), 744)
    assert refusal.value.retry_after == 20  # its own are before it whatever its weight


async def test_the_place_is_kept_while_the_engine_still_answers():
    one, _ = queue()
    engine_done = asyncio.Event()
    story = exchange()
    async with queued(backend(one), tenant(), story):
        story.reading_on = asyncio.ensure_future(engine_done.wait())
    assert one.fair.running == 1
    after = waiting(backend(one))
    await steps()
    assert not after.done()
    engine_done.set()
    await after
    assert idle(one)


@pytest.mark.parametrize(
    ("length", "limit", "tokens"),
    [
        (Counted((3, 4)), 100, 7),
        (Bounded(50, 60), 100, 60),
        (Unverifiable("image"), 100, 100),
        (Unverifiable("image"), None, 1000),
    ],
)
async def test_what_is_not_counted_may_be_as_long_as_anything(length, limit, tokens):
    one, _ = queue(prompt_tokens=1000)
    async with queued(backend(one), tenant(), exchange(length, limit)):
        assert one.fair.running_tokens == tokens
