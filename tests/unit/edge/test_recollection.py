"""What a tenant sent before, in the order of sending."""

from __future__ import annotations

import asyncio

import pytest

from gateway.edge.recollection import Recollection, Recollections

TEXT = ("word " * 200,)


class Slow:
    """Threads whose work waits for ``go``; up to ``inline_bytes`` nothing goes there."""

    def __init__(self, inline_bytes=10_000):
        self.inline_bytes = inline_bytes
        self.go = asyncio.Event()

    async def on_thread(self, work):
        await self.go.wait()
        return work()


def spawn(work, name):
    return asyncio.ensure_future(work)


@pytest.fixture
def memory():
    return Recollections()


def look_up(memory, tenant="a", texts=TEXT, threads=None):
    one = Recollection(memory, tenant, texts, threads or Slow(), spawn)
    one.begin()
    return one


async def test_the_second_time_nothing_is_new(memory):
    assert await look_up(memory).result() != ()
    assert await look_up(memory).result() == ()
    assert await look_up(memory, "b").result() != ()


async def test_beginning_twice_is_beginning_once(memory):
    one = look_up(memory)
    one.begin()
    assert await one.result() != ()


async def test_while_a_long_one_is_looked_up_its_tenants_others_cannot_tell(memory):
    slow = Slow(inline_bytes=0)
    long = look_up(memory, threads=slow)
    short, others = look_up(memory), look_up(memory, "b")
    assert await short.result() is None
    assert await others.result() != ()
    slow.go.set()
    await long.result()
    assert await look_up(memory).result() == ()


async def test_a_tenant_of_plain_prompts_is_not_judged(memory):
    memory.raw.add("a")
    assert await look_up(memory).result() is None
