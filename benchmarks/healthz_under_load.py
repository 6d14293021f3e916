"""Is ``GET /healthz`` quick while eight 4 MB prompts are counted?

Two runs of poolgate before a fake engine: one whose pool is too small, so every prompt is refused,
and one that admits them all. A call every 20 ms on the admin port, each on its own connection and
whether or not the ones before came back, so a stall counts for every call it delays. Exit 1 when
the 99th percentile of a run is over the goal, or when the prompts were not answered as the run
intends. Needs what ``benchmarks/setup_peers.sh`` builds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.proxy import machine, peers
from benchmarks.proxy.reference import prompt_tokens
from benchmarks.proxy.rig import Cores, FakeEngine, Load, favour
from benchmarks.proxy.traffic import CHAT_PATH, POOL_TOKENS, chat_answer, chat_body, engine_routes

GOAL_MS = 50.0
EVERY = 0.02
IN_FLIGHT = 8
BODY_BYTES = 4_000_000
SMALL_POOL = 100_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of the answers to /healthz."""

    calls: int
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        ms = sorted(1000 * s for s in seconds)
        return cls(len(ms), ms[len(ms) // 2], ms[int(len(ms) * 0.99)], ms[-1])


async def ask(port: int) -> float:
    """One call on a connection of its own, as a kubelet makes it; its seconds."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: poolgate\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"/healthz answered {answer[:80]!r}")
    return time.perf_counter() - began


async def watched(port: int, work: Callable[[], Any]) -> tuple[Latency, Any]:
    """``work()`` on a thread, and meanwhile a call every 20 ms whether or not others came back."""
    doing = asyncio.get_running_loop().run_in_executor(None, work)
    calls: list[asyncio.Future[float]] = []
    due = time.perf_counter()
    while not doing.done():
        calls.append(asyncio.get_running_loop().create_task(ask(port)))
        due += EVERY
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    return Latency.of(await asyncio.gather(*calls)), await doing


def run(pool_tokens: int, seconds: float, core: str, work: Path) -> dict[str, Any]:
    """One run: idle first, then under load."""
    cores = Cores.of_this_machine()
    body, probe = chat_body("4 MB", BODY_BYTES), chat_body("1 kB", 1_000)
    with contextlib.ExitStack() as stack:
        engine = FakeEngine(cores.rig, work)
        stack.callback(engine.child.stop)
        engine.answer(engine_routes(pool_tokens, prompt_tokens(probe)))
        gate = next(peer for peer in peers.ALL if peer.name == peers.POOLGATE)
        one = peers.start(gate, engine, core, work, probe)
        assert one.child is not None
        stack.callback(one.child.stop)
        engine.set(CHAT_PATH, chat_answer(prompt_tokens(body)))
        idle, _ = asyncio.run(watched(one.admin, lambda: time.sleep(2)))
        load = Load(cores.rig, work)
        before = engine.chats()
        busy, got = asyncio.run(
            watched(one.admin, lambda: load.run(one.port, body, IN_FLIGHT, seconds, 1, gate.key))
        )
        return {"idle": idle, "loaded": busy, "got": got, "seen": engine.chats() - before}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="under load, each run")
    parser.add_argument(
        "--priority", type=int, default=0, help="nice value of all it starts; below 0 needs root"
    )
    parser.add_argument("--one-core", action="store_true", help="pin poolgate to one core")
    options = parser.parse_args()
    os.setpriority(os.PRIO_PROCESS, 0, options.priority)
    favour(os.getpid(), options.priority)
    cores = Cores.of_this_machine()
    core = (
        str(cores.proxy)
        if options.one_core
        else ",".join(map(str, sorted(os.sched_getaffinity(0))))
    )
    print(json.dumps(machine.describe()), f"poolgate on core {core}")
    fine = True
    for name, pool in (("refused", SMALL_POOL), ("admitted", POOL_TOKENS)):
        with tempfile.TemporaryDirectory(prefix="poolgate-bench-") as folder:
            found = run(pool, options.seconds, core, Path(folder))
        got, busy = found["got"], found["loaded"]
        expected = got["ok"] if name == "admitted" else got["bad_status"]
        as_meant = expected == got["calls"] and found["seen"] == got["ok"]
        as_meant &= name == "admitted" or got["first_bad_status"] == 400
        verdict = "within" if busy.p99 <= GOAL_MS else "OVER"
        fine &= verdict == "within" and as_meant
        print(
            f"{name}: {got['calls']} prompts of 4 MB, {got['per_second']:.1f}/s, {IN_FLIGHT} at a "
            f"time{'' if as_meant else ', NOT ANSWERED AS MEANT: ' + json.dumps(got)}\n"
            f"  idle   {found['idle']}\n  loaded {busy}\n"
            f"  p99 {busy.p99:.1f} ms: {verdict} the goal of {GOAL_MS:.0f} ms"
        )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
