"""Part one: rounds of calls and troubles, each followed by a quiet phase."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soak import plan, watch
from benchmarks.soak.callers import Caller, Seen
from benchmarks.soak.engine import Engine
from benchmarks.soak.faults import Faults, Window
from benchmarks.soak.rig import a_store, an_instance

RETRY_AFTER = 1.0  # seconds, as the gateway asks of those it answers 503


@dataclass
class Ran:
    """All that was seen."""

    callers: int = 0
    seen: list[Seen] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    samples: list[watch.Sample] = field(default_factory=list)
    quiets: list[watch.Quiet] = field(default_factory=list)
    reached: dict[str, plan.Kind] = field(default_factory=dict)
    most_tokens: int = 0
    strangers: int = 0
    repeated: int = 0
    warm_at: float = 0.0  # when the first round was over: monotonic seconds
    exit_status: int | None = None
    said: str = ""
    logged: str = ""


async def run(
    seed: int, calls: int, callers: int, folder: Path, tell: Callable[[str], None]
) -> Ran:
    """Make all calls of a seed. Raises where the rig fails, not where the gateway does."""
    ran = Ran(callers)
    with a_store(folder) as store:
        async with (
            Engine().running() as engine,
            an_instance("gateway", folder, engine.url, store.url) as gateway,
        ):
            faults = Faults(engine, store, gateway)
            sampler = asyncio.create_task(watch.sample(gateway, ran.samples))  # noqa: TID251
            try:
                for number, each in enumerate(plan.rounds(seed, calls)):
                    await _round(seed, each, callers, gateway.data, faults, ran)
                    ran.quiets.append(await watch.quiet(gateway, number, store.port, engine.port))
                    tell(_line(ran))
                    ran.warm_at = ran.warm_at or ran.samples[-1].at
            finally:
                sampler.cancel()
            ran.windows = faults.windows
            ran.reached, ran.strangers = engine.reached, engine.strangers
            ran.most_tokens = engine.most_tokens
            gateway.signal(signal.SIGTERM)
            ran.exit_status = await gateway.ended(30)
        ran.said, ran.logged = gateway.said.read_text(), gateway.logged.read_text()
    return ran


async def _round(
    seed: int, each: plan.Round, callers: int, port: int, faults: Faults, ran: Ran
) -> None:
    numbers = _Counter(each.first, each.last)
    async with asyncio.TaskGroup() as group:
        group.create_task(faults.happen(each.events, lambda: numbers.at))
        for _ in range(callers):
            group.create_task(_calls(seed, numbers, port, ran))


async def _calls(seed: int, numbers: Iterator[int], port: int, ran: Ran) -> None:
    """One caller's calls, until all of the round have begun."""
    caller = Caller(lambda: port)
    for number in numbers:
        call = plan.call(seed, number)
        await asyncio.sleep(call.think)
        seen = await caller.make(call)
        ran.seen.append(seen)
        if seen.status == 503:
            await asyncio.sleep(RETRY_AFTER)  # else a trouble would use up the round's calls
    ran.repeated += caller.repeated
    caller.hang_up()


class _Counter(Iterator[int]):
    """Numbers, shared by the callers; ``at`` is how many calls of the run have begun."""

    def __init__(self, first: int, last: int) -> None:
        self.at = first
        self._last = last

    def __next__(self) -> int:
        if self.at == self._last:
            raise StopIteration
        self.at += 1
        return self.at - 1


def _line(ran: Ran) -> str:
    last = ran.quiets[-1]
    memory = {sample.process: sample.rss for sample in ran.samples[-20:]}
    held = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in sorted(memory.items()))
    return (
        f"round {last.round}: {len(ran.seen)} calls; quiet after {last.waited} s; {held}; files"
        f" {dict(last.files)}, tasks {dict(last.tasks)}, {last.series} series"
    )
