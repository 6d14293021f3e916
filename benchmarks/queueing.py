"""What the fair queue costs a request: ``python -m benchmarks.queueing``.

Nanoseconds for one pass, in and out, at a backend without a queue and at one whose queue has room;
then for the algorithm alone where a thousand wait, of one tenant and of a thousand: one request
ends, another comes, the next is let in. The share is that of the processor time of a whole 1 kB
call which ``benchmarks/results/proxy-1kb.json`` recorded, on whatever machine that was.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

from gateway.core.fairness import Bounds, FairQueue
from gateway.core.tenants import Tenant
from gateway.edge.exchange import Exchange
from gateway.edge.metrics import Metrics
from gateway.edge.queueing import Queue, queued
from gateway.settings import Policy
from gateway.settings.queue import Queue as Written
from gateway.types import Counted

RECORDED = Path(__file__).parent / "results/proxy-1kb.json"
PASSES, ROUNDS = 20_000, 7
TENANT = Tenant("one", Policy())


async def nanoseconds(once: Callable[[], Awaitable[None]]) -> float:
    """The median over rounds of the mean of many passes."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(PASSES):
            await once()
        rounds.append((time.perf_counter_ns() - began) / PASSES)
    return statistics.median(rounds)


def passing(queue: Queue | None) -> Callable[[], Awaitable[None]]:
    backend = SimpleNamespace(queue=queue, waiting=0)
    exchange = Exchange("r", 0.0, "/", length=Counted((223,)))

    async def once() -> None:
        async with queued(backend, TENANT, exchange):
            pass

    return once


def contended(tenants: int) -> Callable[[], Awaitable[None]]:
    """One ends, another comes and the next is let in: a thousand always wait."""
    fair = FairQueue(Bounds(1, None, 2000, None))
    for number in range(1000):
        fair.join(f"t{number % tenants}", 1.0, 223)
    running = fair.admit()
    names = iter(range(1 << 62))

    async def once() -> None:
        fair.leave(running.pop())
        fair.join(f"t{next(names) % tenants}", 1.0, 223)
        running.extend(fair.admit())

    return once


async def main() -> None:
    call_ns = next(
        line["cpu_us"] * 1000
        for line in json.loads(RECORDED.read_text())["lines"]
        if line["peer"] == "poolgate"
    )
    roomy = Queue("b", Written(concurrent=64, prompt_tokens=10**6), Metrics(), time.monotonic)
    for what, once in (
        ("no queue", passing(None)),
        ("a queue with room", passing(roomy)),
        ("1000 wait, of one tenant", contended(1)),
        ("1000 wait, of 1000 tenants", contended(1000)),
    ):
        cost = await nanoseconds(once)
        print(f"{what:27} {cost:7,.0f} ns   {cost / call_ns:6.2%} of a call's processor time")


if __name__ == "__main__":
    asyncio.run(main())
