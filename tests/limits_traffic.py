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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import valkey_server
from bucket import step
from gateway.limits.base import Charge, Limiter, LimitKey, Refused, Unit
from gateway.limits.gcra import Quota, Tat

AMOUNT, PERIOD, BURST = 100, 1.0, 30
SECONDS = 0.7


QUOTA = Quota(AMOUNT, PERIOD, BURST)

Ask = tuple[float, float, int]  # when it was asked, when answered, how many requests at once


@dataclass(frozen=True)
class Run:
    """One round over all processes."""

    seed: int
    asks: tuple[Ask, ...]
    admitted: int

    @property
    def asked(self) -> int:
        return sum(count for _, _, count in self.asks)

    @property
    def most(self) -> float:
        """Burst and rate x window, from the first question to the last answer."""
        window = max(end for _, end, _ in self.asks) - min(begin for begin, _, _ in self.asks)
        return BURST + window * AMOUNT / PERIOD

    @property
    def least(self) -> float:
        """99 % of what one bucket would have admitted of the same questions, in whole requests.

        When the store saw a question is not known: at its beginning or its end, whatever is less.
        """
        return 0.99 * min(_one_bucket(self.asks, at) for at in (0, 1)) - 1


def _one_bucket(asks: Iterable[Ask], at: int) -> int:
    state: Tat | None = None
    admitted = 0
    for ask in sorted(asks, key=lambda ask: ask[at]):
        for _ in range(ask[2]):
            state, decision = step(state, ask[at], 1, QUOTA)
            admitted += decision.allowed
    return admitted


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
            asks = tuple((begin, end, count) for asks, _ in told for begin, end, count in asks)
            yield Run(seed, asks, sum(admitted for _, admitted in told))
        for worker in workers:
            worker.stdin.close()


async def _round(limiter: Limiter, seed: int, index: int, begin: float) -> None:
    seeded = random.Random(1000 * seed + index)
    key = LimitKey("t", f"run {seed}")
    charge = Charge(key, Unit.REQUESTS, QUOTA, 1)
    asks: list[Ask] = []
    admitted = 0
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    ends = time.monotonic() + SECONDS
    while (asked := time.monotonic()) < ends:
        count = seeded.randint(1, 12)
        outcomes = await asyncio.gather(*(limiter.reserve([charge]) for _ in range(count)))
        asks.append((asked, time.monotonic(), count))
        admitted += sum(not isinstance(outcome, Refused) for outcome in outcomes)
        await asyncio.sleep(seeded.random() * 0.01)
    print(json.dumps([asks, admitted]), flush=True)


async def _worker(url: str) -> None:
    async with valkey_server.limiter_on(url, timeout=10.0) as limiter:
        await limiter.peek([Charge(LimitKey("t", "warm"), Unit.REQUESTS, Quota(1, 1.0, 1), 1)])
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            await _round(limiter, *json.loads(line))


if __name__ == "__main__":
    asyncio.run(_worker(*sys.argv[1:]))
