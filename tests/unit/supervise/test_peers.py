"""The relay between workers."""

from __future__ import annotations

import asyncio
import json

from gateway.supervise import peers
from supervise_stubs import StubWorker


def heard(worker):
    return [json.loads(body) for method, path, body in worker.asked if path == peers.PEERS]


async def relayed(workers, monkeypatch, *, wanted=True):
    monkeypatch.setattr(peers, "EVERY", 0)
    task = asyncio.create_task(peers.relay(lambda: workers, lambda: wanted))
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def word(load, cleared=None):
    return {"loads": {"a": load}, "cleared": {"a": cleared} if cleared else {}}


async def test_each_hears_the_others_and_not_itself(monkeypatch):
    one, two, three = (
        StubWorker(index, peers=(200, word(index + 1, cleared)))
        for index, cleared in enumerate((None, "e1", None))
    )
    await relayed([one, two, three], monkeypatch)
    assert heard(one)[-1] == word(5, "e1")
    assert heard(two)[-1] == word(4)
    assert heard(three)[-1] == word(3, "e1")


async def test_a_worker_that_falls_silent_is_remembered_one_that_ended_is_not(monkeypatch):
    one, two = StubWorker(0, peers=(200, word(1))), StubWorker(1, peers=(200, word(2)))
    workers = [one, two]
    monkeypatch.setattr(peers, "EVERY", 0)
    task = asyncio.create_task(peers.relay(lambda: workers, lambda: True))
    for _ in range(50):
        await asyncio.sleep(0)
    del two.answers["peers"]
    for _ in range(50):
        await asyncio.sleep(0)
    assert heard(one)[-1] == word(2)
    workers.remove(two)
    for _ in range(50):
        await asyncio.sleep(0)
    assert heard(one)[-1]["loads"] == {}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nobody_is_asked_where_nothing_is_probed(monkeypatch):
    one = StubWorker(0, peers=(200, word(1)))
    await relayed([one], monkeypatch, wanted=False)
    assert heard(one) == []
