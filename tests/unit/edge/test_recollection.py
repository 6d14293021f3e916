"""What a tenant sent before, in the order of sending."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.core.attestation import texts_of
from gateway.core.prefixes import PrefixMemory
from gateway.dialects import routes
from gateway.edge import recollection
from gateway.edge.recollection import Recollection, Recollections

PATH = "/v1/chat/completions"
TEXT = "word " * 200


class Slow:
    """Threads whose work waits for ``go``."""

    def __init__(self):
        self.go = asyncio.Event()

    async def on_thread(self, work):
        await self.go.wait()
        return work()


def spawn(work, name):
    return asyncio.ensure_future(work)


@pytest.fixture
def memory():
    return Recollections()


def look_up(memory, tenant="a", text=TEXT, threads=None, past=None, before=()):
    turns = [{"role": "user", "content": each} for each in (*before, text)]
    body = {"model": "m", "messages": turns}
    request = routes.match("POST", PATH).parse(PATH, msgspec.json.encode(body))
    one = Recollection(
        memory,
        request,
        tenant,
        texts=texts_of(request),
        past=past,
        threads=threads or Slow(),
        spawn=spawn,
    )
    one.begin()
    return one


async def unseen(one):
    return (await one.result()).unseen


async def test_the_second_time_nothing_is_new(memory):
    assert await unseen(look_up(memory)) != ()
    assert await unseen(look_up(memory)) == ()
    assert await unseen(look_up(memory, "b")) != ()


async def test_beginning_twice_is_beginning_once(memory):
    one = look_up(memory)
    one.begin()
    assert await unseen(one) != ()


async def test_while_a_long_one_is_looked_up_its_tenants_others_cannot_tell(memory, monkeypatch):
    slow = Slow()
    with monkeypatch.context() as patch:
        patch.setattr(recollection, "quickly_rendered", lambda _: False)
        long = look_up(memory, threads=slow)
    short, others = look_up(memory), look_up(memory, "b")
    assert await unseen(short) is None
    assert await unseen(others) != ()
    slow.go.set()
    await long.result()
    assert await unseen(look_up(memory)) == ()


async def test_a_tenant_of_plain_prompts_is_not_judged(memory):
    memory.raw.add("a")
    assert await unseen(look_up(memory)) is None


async def test_the_share_that_is_new_is_of_the_backend_and_of_the_tenant(memory):
    here, there = PrefixMemory(1000), PrefixMemory(1000)
    text = "".join(f"{n} " for n in range(4000))
    assert (await look_up(memory, text=text, past=here).result()).new_share > 0.95
    assert (await look_up(memory, text=text, past=here).result()).new_share == 0
    more = await look_up(memory, text=text + "x" * len(text), past=here).result()
    assert more.new_share == pytest.approx(0.5, abs=0.03)
    assert (await look_up(memory, text=text, past=there).result()).new_share > 0.95
    assert (await look_up(memory, "b", text=text, past=here).result()).new_share > 0.95


async def test_without_a_memory_of_the_backend_all_is_new(memory):
    assert (await look_up(memory).result()).new_share == 1


async def test_after_another_beginning_a_text_is_seen_and_yet_new_to_the_backend(memory):
    past, text = PrefixMemory(1000), "".join(f"{n} " for n in range(4000))
    await look_up(memory, text=text, past=past).result()
    moved = await look_up(memory, text=text, past=past, before=("It is Monday.",)).result()
    assert moved.unseen == ()
    assert moved.new_share > 0.95


async def test_a_text_sent_twice_in_one_prompt_is_new_twice(memory):
    known = await look_up(memory, text=TEXT, before=(TEXT,), past=PrefixMemory(1000)).result()
    [one, other] = known.unseen
    assert one == other
