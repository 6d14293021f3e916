"""Bursty traffic on one quota from several processes, and what of it may be admitted.

Run as a script it is one of the processes: it reads one line for each round.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import valkey_server
from gateway.limits.base import Charge, Limiter, LimitKey, Refused, Unit
from gateway.limits.gcra import Quota

AMOUNT, PERIOD, BURST = 100, 1.0, 30
SECONDS = 0.7


@dataclass(frozen=True)
class Run:
    """One round over all processes."""

    seed: int
    asked: int
    admitted: int
    window: float  # seconds from the first question to the last answer
    together: float  # seconds until the first process had its last answer

    @property
    def most(self) -> float:
        """What the quota allows in the whole window."""
        return BURST + self.window * AMOUNT / PERIOD

    @property
    def least(self) -> float:
        """What is to be admitted while all ask: 99 % of what is allowed, in whole requests."""
        return 0.99 * (BURST + self.together * AMOUNT / PERIOD) - 1


def runs(url: str, *, processes: int, rounds: int, first_seed: int = 0) -> Iterator[Run]:
    """Rounds of traffic, each with seeds and a quota of its own."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(processes)
        ]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for seed in range(first_seed, first_seed + rounds):
            begin = time.monotonic() + 0.02
            for index, worker in enumerate(workers):
                worker.stdin.write(json.dumps([seed, index, begin]) + "\n")
                worker.stdin.flush()
            told = [json.loads(worker.stdout.readline()) for worker in workers]
            asked, admitted, first, last = zip(*told, strict=True)
            began = min(first)
            yield Run(seed, sum(asked), sum(admitted), max(last) - began, min(last) - began)
        for worker in workers:
            worker.stdin.close()


async def _round(limiter: Limiter, seed: int, index: int, begin: float) -> None:
    seeded = random.Random(1000 * seed + index)
    key = LimitKey("t", f"run {seed}")
    charge = Charge(key, Unit.REQUESTS, Quota(AMOUNT, PERIOD, BURST), 1)
    asked = admitted = 0
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    first = last = time.monotonic()
    while last < first + SECONDS:
        burst = seeded.randint(1, 12)
        outcomes = await asyncio.gather(*(limiter.reserve([charge]) for _ in range(burst)))
        last = time.monotonic()
        asked += burst
        admitted += sum(not isinstance(outcome, Refused) for outcome in outcomes)
        await asyncio.sleep(seeded.random() * 0.01)
    print(json.dumps([asked, admitted, first, last]), flush=True)


async def _worker(url: str) -> None:
    async with valkey_server.limiter_on(url, timeout=10.0) as limiter:
        await limiter.peek([Charge(LimitKey("t", "warm"), Unit.REQUESTS, Quota(1, 1.0, 1), 1)])
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            await _round(limiter, *json.loads(line))


if __name__ == "__main__":
    asyncio.run(_worker(*sys.argv[1:]))
