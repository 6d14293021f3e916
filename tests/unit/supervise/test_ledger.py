"""Counters of workers that come and go."""

from __future__ import annotations

import asyncio

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from gateway.supervise import ledger as ledger_module
from gateway.supervise import merge
from gateway.supervise.handover import LastWords
from gateway.supervise.ledger import Ledger
from supervise_stubs import StubWorker
from waiting import until


def scrape(requests):
    return merge.packed(
        [
            CounterMetricFamily("poolgate_requests", "Requests", value=requests),
            GaugeMetricFamily("poolgate_workers", "Workers", value=1),
        ]
    )


async def told(ledger):
    text = (await ledger.metrics()).decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_counters_never_fall_and_gauges_are_of_those_that_answer():
    workers = [StubWorker(0, metrics=scrape(5)), StubWorker(1, metrics=scrape(7))]
    ledger = Ledger(lambda: workers)
    assert await told(ledger) == {
        "poolgate_requests_total": 12,
        "poolgate_workers": 2,
        "poolgate_worker_restarts_total": 0,
    }
    del workers[1].answers["metrics"]  # it hangs
    workers[0].answers["metrics"] = scrape(6)
    assert (await told(ledger))["poolgate_requests_total"] == 13
    assert (await told(ledger))["poolgate_workers"] == 1
    ledger.bury(workers.pop().said)  # it is dead
    ledger.restarts += 1
    assert await told(ledger) == {
        "poolgate_requests_total": 13,
        "poolgate_workers": 1,
        "poolgate_worker_restarts_total": 1,
    }
    workers.append(StubWorker(1, metrics=scrape(1)))  # its successor begins at nothing
    assert (await told(ledger))["poolgate_requests_total"] == 14


async def test_a_worker_that_dies_while_it_is_asked_counts_once():
    workers = [StubWorker(0, metrics=scrape(5))]
    ledger = Ledger(lambda: workers)
    asking = asyncio.ensure_future(told(ledger))
    await asyncio.sleep(0)
    ledger.bury(LastWords(scrape(6), []))
    workers.clear()
    assert (await asking)["poolgate_requests_total"] == 6


async def test_workers_are_asked_now_and_then_for_what_they_would_take_with_them(monkeypatch):
    monkeypatch.setattr(ledger_module, "SOONEST", 0.01)
    only, starting = StubWorker(0, metrics=scrape(1)), StubWorker(1, metrics=scrape(1))
    starting.up = False
    ledger = Ledger(lambda: [only, starting])
    async with asyncio.TaskGroup() as tasks:
        remembering = tasks.create_task(ledger.remember())
        await asyncio.sleep(0.005)
        only.answers["metrics"] = scrape(2)
        await until(lambda: only.said.metrics == scrape(2))
        remembering.cancel()
    assert starting.said.metrics == b""


async def test_fifty_restarts_leave_one_series():
    ledger = Ledger(list)
    for _ in range(50):
        ledger.bury(LastWords(scrape(2), []))
    text = (await ledger.metrics()).decode()
    assert [line for line in text.splitlines() if line.startswith("poolgate_requests")] == [
        "poolgate_requests_total 100.0"
    ]


async def test_incidents_of_the_dead_stay():
    def incident(second):
        return msgspec.Raw(
            msgspec.json.encode({"id": second, "time": f"2026-11-30T10:00:0{second}+00:00"})
        )

    alive = StubWorker(0)
    alive.said = LastWords(b"", [incident(1), incident(5), incident(3)])
    ledger = Ledger(lambda: [alive])
    ledger.bury(LastWords(b"", [incident(3)]))
    assert [found["time"][18] for found in await ledger.incidents()] == ["5", "3", "1"]
