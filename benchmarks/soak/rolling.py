"""Part two: rolling restarts of two gateways under streams, of which none may be cut.

A balancer stands before two instances that share a store, as a platform's does: it is told to leave
one out (preStop), that one gets SIGTERM, drains, ends and is started again. Every other restart is
of one worker, by SIGTERM, while its instance keeps serving.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic

from benchmarks.soak import plan, wire
from benchmarks.soak.callers import Caller, Ending, Seen
from benchmarks.soak.engine import Engine
from benchmarks.soak.judge import Claim
from benchmarks.soak.rig import WORKERS, Instance, a_store, an_instance

PRE_STOP = 0.3  # seconds between leaving an instance out and its SIGTERM
DRAIN = 40.0  # seconds it may take to end
BETWEEN = 0.5  # seconds between two restarts


@dataclass
class Rolled:
    """What was seen."""

    seen: list[Seen] = field(default_factory=list)
    instances: int = 0  # restarted
    workers: int = 0
    statuses: list[int] = field(default_factory=list)  # with which instances ended
    drains: list[float] = field(default_factory=list)  # seconds from SIGTERM to an instance's end
    cut_off: int = 0  # drains that ended by their budget
    repeated: int = 0


class Balancer:
    """Passes connections on to the instances that are in, in turn."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._out: set[int] = set()
        self._turn = count()
        self.port = 0

    def leave_out(self, index: int) -> None:
        """No new connection goes there; those there are stay."""
        self._out.add(index)

    def take_in(self, index: int) -> None:
        self._out.discard(index)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Balancer]:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        within = [port for index, port in enumerate(self._ports) if index not in self._out]
        port = within[next(self._turn) % len(within)]
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            wire.close(writer, reset=True)
            return
        back = asyncio.create_task(_pump(inner_reader, writer))  # noqa: TID251
        try:
            await _pump(reader, inner_writer)
            await back
        except asyncio.CancelledError:  # the run is over
            back.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All bytes of one direction; its end closes the other."""
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    wire.close(writer)


async def run(
    seed: int, restarts: int, callers: int, folder: Path, tell: Callable[[str], None]
) -> Rolled:
    """So many restarts. Raises where the rig fails."""
    rolled = Rolled()
    with a_store(folder) as store:
        async with (
            Engine().running() as engine,
            an_instance("one", folder, engine.url, store.url) as one,
            an_instance("other", folder, engine.url, store.url) as other,
            Balancer([one.data, other.data]).running() as balancer,
        ):
            instances, over, numbers = (one, other), asyncio.Event(), count()
            async with asyncio.TaskGroup() as group:
                for _ in range(callers):
                    group.create_task(_calls(seed, numbers, balancer, over, rolled))
                try:
                    for turn in range(restarts):
                        await asyncio.sleep(BETWEEN)
                        await _restart(turn, instances, balancer, rolled)
                        if turn % 10 == 9:
                            tell(f"{turn + 1} restarts, {len(rolled.seen)} streams")
                    await asyncio.sleep(BETWEEN)
                finally:
                    over.set()
        rolled.cut_off = sum(each.said.read_text().count("cut off") for each in instances)
    return rolled


async def _calls(
    seed: int, numbers: count[int], balancer: Balancer, over: asyncio.Event, rolled: Rolled
) -> None:
    """One caller's streams, until the last restart is over."""
    caller = Caller(lambda: balancer.port)
    while not over.is_set():
        call = plan.healthy_stream(seed, next(numbers))
        await asyncio.sleep(call.think)
        rolled.seen.append(await caller.make(call))
    rolled.repeated += caller.repeated
    caller.hang_up()


async def _restart(
    turn: int, instances: Sequence[Instance], balancer: Balancer, rolled: Rolled
) -> None:
    """Instance one, a worker of it, the other, a worker of that, and again."""
    index, of_instance = turn // 2 % 2, turn % 2 == 0
    instance = instances[index]
    if not of_instance:
        await _restart_worker(instance, turn // 4 % WORKERS)
        rolled.workers += 1
        return
    balancer.leave_out(index)
    await asyncio.sleep(PRE_STOP)
    began = monotonic()
    instance.signal(signal.SIGTERM)
    rolled.statuses.append(await instance.ended(DRAIN))
    rolled.drains.append(monotonic() - began)
    await instance.start()
    balancer.take_in(index)
    rolled.instances += 1


async def _restart_worker(instance: Instance, index: int) -> None:
    victim = await instance.worker(index)
    if victim is None:
        raise RuntimeError(f"worker {index} of {instance.name} is not up")
    os.kill(victim, signal.SIGTERM)
    async with asyncio.timeout(DRAIN):
        while await instance.worker(index) in (victim, None):
            await asyncio.sleep(0.1)


def judge(rolled: Rolled) -> list[Claim]:
    """What the restarts showed."""
    not_whole = [one for one in rolled.seen if one.ending is not Ending.COMPLETE]
    cut = [one for one in not_whole if one.ending in (Ending.CUT, Ending.HOLLOW)]
    others = [f"call {one.call.number}: {one.outcome}" for one in not_whole]
    restarts = rolled.instances + rolled.workers
    slowest = max(rolled.drains, default=0.0)
    return [
        Claim(
            f"no stream is cut by {restarts} restarts",
            not cut and restarts > 0 and len(rolled.seen) > restarts,
            f"{len(cut)} of {len(rolled.seen):,} streams; {rolled.instances} restarts of an"
            f" instance (the slowest ended {slowest:.1f} s after SIGTERM), {rolled.workers} of a"
            " worker",
            others[:8],
        ),
        Claim(
            "and every call is answered in full",
            not not_whole and not any(one.foreign for one in rolled.seen),
            f"{len(not_whole)} were not; {rolled.repeated} came over a kept connection that was"
            " just closed, and were made anew",
            others[:8],
        ),
        Claim(
            "every instance drains and exits with 0",
            not any(rolled.statuses) and not rolled.cut_off,
            f"{rolled.statuses.count(0)} of {len(rolled.statuses)}; {rolled.cut_off} drains cut"
            " something off",
        ),
    ]
