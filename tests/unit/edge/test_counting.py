"""Who counts where: in place, on a thread, or in the lane of prompts that take seconds."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, current_thread
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from assets_at_hand import TINY, store, whole_count
from gateway.edge.counting import SLOW_LANE, SLOW_LANE_OF_ONE, LocalMeasurer, Threads
from gateway.edge.metrics import Metrics
from gateway.tokens.counters import EngineCounters
from gateway.tokens.encoder import LONG_PIECE
from gateway.tokens.recall import CountCache, NeedsPatience
from gateway.types import (
    AtLeast,
    Bounded,
    Counted,
    ParsedRequest,
    Prompt,
    TextPrompt,
    TokenIdPrompt,
    Unverifiable,
)
from waiting import until

INLINE = 2**14
LONG = " ".join(f"{index} word" for index in range(20_000))
SLOW = " " * 4_000_000  # one library call of a second or so


def request(*texts: str, prompt: Prompt | None = None) -> ParsedRequest:
    return ParsedRequest(
        dialect="openai_completions",
        path="/v1/completions",
        raw="".join(texts).encode(),
        body={},
        model="m",
        stream=False,
        prompt=prompt or TextPrompt(texts),
    )


class Slow:
    """A counter whose patient counts wait to be let go."""

    def __init__(self):
        self.go = Event()
        self.begun = 0

    def count(self, prompt, stop_at=None, means=None):
        if not means.patient:
            raise NeedsPatience
        self.begun += 1
        self.go.wait(timeout=20)
        return Counted((5,))

    def glance(self, prompt):
        return None

    def measure(self, prompt, limit, means=None):
        return self.count(prompt, limit, means)


@contextmanager
def measuring(counters=None, cache_bytes=2**20, fallback=None):
    executors = ThreadPoolExecutor(1, "count"), ThreadPoolExecutor(1, "slow")
    metrics = Metrics()
    one = LocalMeasurer(
        counters or EngineCounters(store(), TINY),
        Threads(*executors, INLINE, metrics),
        CountCache(cache_bytes, b"secret"),
        metrics,
        lambda: None,
        fallback,
    )
    try:
        yield one, metrics
    finally:
        for executor in executors:
            executor.shutdown(cancel_futures=True)


async def test_a_glance_admits_in_place_what_bytes_alone_settle():
    with measuring() as (one, metrics):
        bound = await one.measure(request(LONG), 2 * len(LONG), "a")
        assert bound == Bounded(len(LONG), len(LONG))
        assert sample(metrics, "poolgate_count_seconds_count", how="in_place") == 1


async def test_what_is_remembered_but_for_a_little_is_counted_in_place():
    text = LONG[:197_500]  # six pieces of 32,770 characters or some more, and under a thousand
    with measuring() as (one, metrics):
        for tenant, more, on_thread in (
            ("a", "", True),
            ("a", "", False),
            ("a", " and a little", False),
            ("a", LONG[:4096], True),
            ("b", "", True),
        ):
            before = sample(metrics, "poolgate_count_seconds_count", how="thread")
            counted = await one.exact(request(text + more), tenant)
            assert counted == Counted((whole_count(TINY, text + more),))
            after = sample(metrics, "poolgate_count_seconds_count", how="thread")
            assert (after > before) == on_thread, (tenant, more)


async def test_without_a_memory_nothing_long_is_counted_in_place():
    with measuring(cache_bytes=0) as (one, metrics):
        await one.exact(request(LONG), "a")
        before = sample(metrics, "poolgate_count_seconds_count", how="thread")
        await one.exact(request(LONG), "a")
        assert sample(metrics, "poolgate_count_seconds_count", how="thread") == before + 1


async def test_each_lookup_is_told_once():
    with measuring() as (one, metrics):
        for _ in range(2):
            await one.exact(request(LONG), "a")
        told = [sample(metrics, "poolgate_count_cache_total", result=r) for r in ("hit", "miss")]
        assert told[0] == told[1] > 0


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x"}] * 101},
        {"prompt": ["x"] * 200},
        {"tools": {str(i): {} for i in range(200)}},
    ],
)
async def test_a_body_of_many_values_is_not_rendered_on_the_loop(body):
    with measuring() as (one, metrics):
        many = replace(request(LONG), body=body)
        assert isinstance(await one.measure(many, 2 * len(LONG), "a"), Bounded)
        assert sample(metrics, "poolgate_count_seconds_count", how="in_place") == 0


def with_counter(counter):
    return SimpleNamespace(loaded=lambda _engine: counter, load=lambda _engine: counter)


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels) or 0


@pytest.mark.parametrize("text", ["a few words", LONG])
async def test_small_and_large_are_counted_the_same(text):
    with measuring() as (one, metrics):
        exact = Counted((whole_count(TINY, text),))
        assert await one.exact(request(text), "a") == exact
        assert await one.measure(request(text), exact.longest, "a") == exact
        assert await one.measure(request(text), len(text), "a") in (
            exact,
            Bounded(len(text), len(text)),
        )
        where = "in_place" if len(text) < INLINE else "thread"
        assert sample(metrics, "poolgate_count_seconds_count", how=where) >= 3
        assert sample(metrics, "poolgate_count_seconds_count", how="slow_lane") == 0


async def test_a_next_turn_is_remembered_for_its_tenant_alone():
    with measuring() as (one, metrics):
        for tenant, text in (("a", LONG), ("b", LONG)):
            await one.exact(request(text), tenant)
        assert sample(metrics, "poolgate_count_cache_total", result="hit") == 0
        longer = LONG + " and more"
        assert await one.exact(request(longer), "a") == Counted((whole_count(TINY, longer),))
        assert sample(metrics, "poolgate_count_cache_total", result="hit") > 3


async def test_nothing_is_remembered_with_no_room():
    with measuring(cache_bytes=0) as (one, metrics):
        for _ in range(2):
            assert await one.exact(request(LONG), "a") == Counted((whole_count(TINY, LONG),))
        assert sample(metrics, "poolgate_count_cache_total", result="miss") == 0


async def test_what_is_long_keeps_nobody_waiting():
    """Counted on a thread of its own, in the lane of slow prompts too: never on the loop's."""
    seen = []

    class Noting(Slow):
        def count(self, prompt, stop_at=None, means=None):
            seen.append(current_thread())
            return super().count(prompt, stop_at, means)

    noting = Noting()
    noting.go.set()
    counters = SimpleNamespace(loaded=lambda _: None, load=lambda _: noting)
    with measuring(counters, cache_bytes=0) as (one, _):
        await one.exact(request(LONG), "a")
        await one.measure(request(LONG), 1000, "a")
    assert {thread.name.rpartition("_")[0] for thread in seen} == {"count", "slow"}


async def test_token_ids_need_no_thread():
    with measuring() as (one, metrics):
        by_ids = request("1," * INLINE, prompt=TokenIdPrompt((7,), 5))
        assert await one.measure(by_ids, 3, "a") == Counted((7,))
        assert sample(metrics, "poolgate_count_seconds_count", how="in_place") == 1


async def test_others_are_counted_while_one_prompt_takes_seconds():
    """And the loop stays awake, and the lane's thread lives on."""
    with measuring() as (one, metrics):
        await one.exact(request(LONG), "warm")
        began = time.process_time()
        slow = asyncio.ensure_future(one.measure(request(SLOW), 1000, "bad"))
        awake, ended = 0, []
        for index in range(5):
            text = f"{index} {LONG}"
            assert await one.exact(request(text), "good") == Counted((whole_count(TINY, text),))
            ended.append(slow.done())
            await asyncio.sleep(0.01)
        assert not any(ended)
        worst, last = 0.0, time.process_time()
        while not slow.done():
            await asyncio.sleep(0.005)
            worst, last = max(worst, time.process_time() - last), time.process_time()
            awake += 1
        assert awake > 10
        # Alone on a quiet machine 0.02; a call that held the interpreter would be nearly all of it.
        assert worst < max(0.3, (time.process_time() - began) / 2)
        length = await slow
        assert isinstance(length, Counted | AtLeast)
        assert length.longest == whole_count(TINY, SLOW)
        assert sample(metrics, "poolgate_count_seconds_count", how="slow_lane") == 1
        again = request("x" * (LONG_PIECE + 1))
        assert isinstance(await one.exact(again, "bad"), Counted)


async def test_a_bound_or_the_rest_of_the_prompt_settles_it_without_the_lane():
    slow = Slow()
    run = "x" * (LONG_PIECE + 1)
    with measuring() as (one, metrics):
        assert isinstance(await one.measure(request(run), 10 * len(run), "a"), Bounded)
        over = await one.measure(request(f"{run} {LONG}"), 1000, "a")
        assert isinstance(over, AtLeast)
        assert over.longest > 1000
        assert sample(metrics, "poolgate_count_seconds_count", how="slow_lane") == 0
    assert slow.begun == 0


def start(one, tenant):
    return asyncio.ensure_future(one.exact(request(LONG), tenant))


async def in_lane(one, slow, count):
    """So many have reached the lane, and one of them is being counted."""
    await until(lambda: slow.begun and len(one._threads._in_slow_lane) >= count)


async def test_a_full_lane_is_our_trouble_and_empties():
    slow = Slow()
    with measuring(with_counter(slow)) as (one, _):
        waiting = [start(one, "ab"[place % 2]) for place in range(SLOW_LANE)]
        await in_lane(one, slow, SLOW_LANE)
        assert await one.measure(request(LONG), 9, "c") == Unverifiable("busy", transient=True)
        slow.go.set()
        assert await asyncio.gather(*waiting) == [Counted((5,))] * SLOW_LANE
        assert await one.exact(request(LONG), "a") == Counted((5,))


async def test_one_tenant_cannot_fill_the_lane():
    slow = Slow()
    with measuring(with_counter(slow)) as (one, _):
        waiting = [start(one, "a") for _ in range(SLOW_LANE_OF_ONE)]
        await in_lane(one, slow, SLOW_LANE_OF_ONE)
        assert await one.exact(request(LONG), "a") == Unverifiable("busy", transient=True)
        waiting.append(start(one, "b"))
        await in_lane(one, slow, SLOW_LANE_OF_ONE + 1)
        slow.go.set()
        assert await asyncio.gather(*waiting) == [Counted((5,))] * len(waiting)


async def test_who_leaves_makes_room_in_the_lane():
    slow = Slow()
    with measuring(with_counter(slow)) as (one, _):
        waiting = [start(one, "ab"[place % 2]) for place in range(SLOW_LANE)]
        await in_lane(one, slow, SLOW_LANE)
        waiting[-1].cancel()
        await asyncio.wait(waiting[-1:])
        late = start(one, "b")
        await in_lane(one, slow, SLOW_LANE)
        slow.go.set()
        assert await late == Counted((5,))
        await asyncio.gather(*waiting, return_exceptions=True)
    assert slow.begun == SLOW_LANE


async def test_the_engine_is_asked_where_our_rendering_gives_up():
    class Engine:
        async def exact(self, request, tenant):
            return Counted((11,))

    gives_up = SimpleNamespace(count=lambda *_: Unverifiable("harmony"))
    with measuring(with_counter(gives_up), fallback=Engine()) as (one, _):
        assert await one.measure(request("a"), 9, "a") == Counted((11,))


async def test_work_beside_a_small_request_begins_when_the_loop_comes_round():
    """Before any other request's answer: the next one may share its pages."""
    begun = []
    executors = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    threads = Threads(*executors, INLINE, Metrics())
    threads.after_sending(request("small"), lambda: begun.append("small"))
    threads.after_sending(request(LONG), lambda: begun.append("long"))
    threads.after_sending(request("small"), lambda: begun.append("cancelled")).cancel()
    assert begun == []
    await asyncio.sleep(0)
    assert begun == ["small"]
    await until(lambda: len(begun) == 2)
    assert begun == ["small", "long"]
