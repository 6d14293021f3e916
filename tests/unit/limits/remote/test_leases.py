from __future__ import annotations

import asyncio

from redis.exceptions import ConnectionError as Lost

from gateway.limits.base import Charge, Concurrency, LimitKey, Unit
from gateway.limits.judge import Taken
from gateway.limits.remote import calls
from gateway.limits.remote.leases import Endings, RemoteLease, Running
from waiting import own_clock, until

SLOT = Charge(LimitKey("t", "slots"), Unit.SLOTS, Concurrency(5), 1)
TAKEN = [1, 100, 0, 0]
END = calls.settle("id", "t", [SLOT], None, mark=False)


class Nobody:
    async def end(self, lease, used) -> None:
        raise AssertionError("not asked to end")


def lease(name: str = "id") -> RemoteLease:
    return RemoteLease(name, "t", Taken((SLOT,), {}, None), Nobody())


def lost(command, arguments):
    raise Lost


def sent_ids(bench) -> list[object]:
    """Leases that commands were about, without probes."""
    return [sent[sent[2] + 3] for sent in bench.client.sent if "probe" not in str(sent)]


async def test_every_third_of_a_term_each_running_lease_is_renewed(bench) -> None:
    running = Running(bench.link, 0.6, bench.tasks, bench.watch)
    bench.client.answer = lambda command, arguments: [0, 100, 0, 0]
    names = [f"lease-{n}" for n in range(40)]
    async with own_clock() as clock:
        for name in names:
            running.add(lease(name))
        await until(lambda: len(sent_ids(bench)) >= len(names))
        assert clock() < 0.3
    assert sorted(sent_ids(bench)) == sorted(names)


async def test_a_lost_slot_is_told_once(bench) -> None:
    running = Running(bench.link, 30.0, bench.tasks, bench.watch)
    bench.client.answer = lambda command, arguments: [1, 100, 0, 0]
    running.add(lease())
    for _ in range(3):
        await running.renew()
    assert bench.watch.slots_lost == 1


async def test_a_lease_is_in_doubt_while_its_renewal_may_be_on_its_way(bench) -> None:
    running = Running(bench.link, 30.0, bench.tasks, bench.watch)
    kept = lease()
    running.add(kept)
    await running.renew()
    assert not kept.doubtful
    bench.client.answer = lost
    await running.renew()
    assert kept.doubtful


async def test_an_end_that_was_not_heard_is_told_again_and_given_up_in_the_end(bench) -> None:
    endings = Endings(bench.link, 0.05, bench.tasks)
    bench.client.answer = lost
    await endings.tell(END)
    await endings.tell(END)  # the way is closed by now: kept
    assert sent_ids(bench) == ["id"]
    bench.client.answer = lambda command, arguments: TAKEN
    await until(lambda: bench.link.up)
    await endings.catch_up()
    assert sent_ids(bench) == ["id"] * 3
    await endings.catch_up()
    assert sent_ids(bench) == ["id"] * 3


async def test_an_end_is_not_waited_for_longer_than_the_timeout(bench) -> None:
    endings = Endings(bench.link, 0.05, bench.tasks)
    bench.client.gate = asyncio.Event()
    began = asyncio.get_running_loop().time()
    async with own_clock() as clock:
        await endings.tell(END)
        assert clock() < 0.2
    assert asyncio.get_running_loop().time() - began > 0.04
    bench.client.gate.set()
    await endings.finish()
    assert sent_ids(bench) == ["id"]
