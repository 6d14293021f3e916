"""Several proxies in short turns, one after the other, so that what else the machine does falls on
all alike: what differs between their medians is the proxies' own.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.proxy import peers
from benchmarks.proxy.reference import prompt_tokens
from benchmarks.proxy.rig import Cores, FakeEngine, Load, core_watch
from benchmarks.proxy.traffic import Body, engine_routes

STAMPS = 10**7  # of one turn: no request of another has the same


def cpu_in_turns(
    contenders: Sequence[peers.Peer], body: Body, turns: int, seconds: float, connections: int = 16
) -> list[list[float]]:
    """Microseconds of processor time a call, of each contender in each turn.

    A turn before the first warms up. Raises RuntimeError where one does not start or answer.
    """
    cores = Cores.of_this_machine()
    with (
        tempfile.TemporaryDirectory(prefix="poolgate-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        engine = FakeEngine(cores.rig, Path(folder))
        stack.callback(engine.child.stop)
        engine.answer(engine_routes(prompt_tokens=prompt_tokens(body)))
        running = []
        for number, contender in enumerate(contenders):
            work = Path(folder) / str(number)
            work.mkdir()
            one = peers.start(contender, engine, cores.proxy, work, body)
            if one.child is None:
                raise RuntimeError("the direct way has no process to measure")
            stack.callback(one.child.stop)
            one.child.pause()
            running.append((one, one.child))
        load, stamp = Load(cores.rig, Path(folder)), 0
        took: list[list[float]] = [[] for _ in running]
        for turn in range(turns + 1):
            for (one, child), times in zip(running, took, strict=True):
                child.resume()
                peers.wait_until_it_answers(one, body, 30)
                with core_watch(cores.proxy, [child]) as watched:
                    done = load.run(one.port, body, connections, seconds, stamp, one.peer.key)
                child.pause()
                stamp += STAMPS
                if turn:
                    times.append(watched["cpu"] * 1e6 / done["calls"])
        return took
