"""Where poolgate's time goes at load: ``python -m benchmarks.where_time_goes [--size "1 kB"]``.

Samples poolgate's threads with py-spy (from .bench/profiler, see setup_peers.sh) while the load
generator keeps 16 connections busy, and prints each function's share of the samples and of the
processor time of a call: its own, and with all it calls. Sampling slows the process a little: read
the shares, not the rate.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.proxy import peers
from benchmarks.proxy.__main__ import SIZES
from benchmarks.proxy.reference import prompt_tokens
from benchmarks.proxy.rig import BENCH, Cores, FakeEngine, Load, core_watch
from benchmarks.proxy.traffic import Body, chat_body, engine_routes

# A pool's thread that waits for work, but that py-spy takes for busy: without WORK.
WORKER, WORK = (f"{name} (concurrent/futures/thread.py" for name in ("_worker", "_WorkItem.run"))
PY_SPY = BENCH / "profiler/bin/py-spy"


def shares(raw: str) -> tuple[Counter[str], Counter[str]]:
    """Samples by function from py-spy's folded stacks: own, and with callees."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for frames, count in stacks(raw):
        own[frames[-1]] += count
        for frame in set(frames):
            whole[frame] += count
    return own, whole


def stacks(raw: str) -> Iterator[tuple[list[str], int]]:
    """Each stack of py-spy's folded ones, outermost first, without line numbers; and its samples.

    Those of threads that wait for work are left out.
    """
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [frame.rpartition(":")[0] or frame for frame in stack.split(";")]
        if WORK in frames or WORKER not in frames:
            yield frames, int(count)


def table(title: str, counts: Counter[str], total: int, top: int, cpu_us: float) -> str:
    rows = [
        f"{n / total:7.1%} {n / total * cpu_us:7.1f} us  {name}"
        for name, n in counts.most_common(top)
    ]
    return f"{title}\n" + "\n".join(rows)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A peer at load: its rate and processor time a call without the profiler, then its stacks."""

    per_second: float
    cpu_us: float
    folded: str


def sampled(name: str, body: Body, cores: Cores, seconds: int, rate: int, *extra: str) -> Sampled:
    """Start the peer alone and sample it. ``extra``: options of ``py-spy record``."""
    with (
        tempfile.TemporaryDirectory(prefix="poolgate-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        work = Path(folder)
        engine = FakeEngine(cores.rig, work)
        stack.callback(engine.child.stop)
        engine.answer(engine_routes(prompt_tokens=prompt_tokens(body)))
        peer = next(peer for peer in peers.ALL if peer.name == name)
        one = peers.start(peer, engine, cores.proxy, work, body)
        if one.child is None:
            raise ValueError("the direct way has no process")
        stack.callback(one.child.stop)
        load = Load(cores.rig, work)
        with core_watch(cores.proxy, [one.child]) as watched:
            plain = load.run(one.port, body, 16, 3, 10**9, peer.key)
        cpu_us = watched["cpu"] * 1e6 / plain["calls"]
        folded = work / "folded.txt"
        with ThreadPoolExecutor(1) as pool:
            loaded = pool.submit(load.run, one.port, body, 16, seconds + 2, 1, peer.key)
            subprocess.run(
                [
                    str(PY_SPY), "record", "-d", str(seconds), "-r", str(rate),
                    "-F", "-f", "raw", "-o", str(folded), "-p", str(one.child.pid), *extra,
                ],
                check=True, capture_output=True,
            )  # fmt: skip
            loaded.result()
        return Sampled(plain["per_second"], cpu_us, folded.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="1 kB")
    parser.add_argument("--peer", default=peers.POOLGATE, help="or another Python peer")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--top", type=int, default=45)
    parser.add_argument("--rate", type=int, default=400, help="samples a second")
    parser.add_argument("--native", action="store_true", help="with frames of C extensions")
    options = parser.parse_args()
    body = chat_body(options.size, SIZES[options.size])
    extra = ["--native"] if options.native else []
    seen = sampled(
        options.peer, body, Cores.of_this_machine(), options.seconds, options.rate, *extra
    )
    own, whole = shares(seen.folded)
    total = sum(own.values())
    print(
        f"{options.peer}, {body.name}: {seen.per_second:.0f} r/s, {seen.cpu_us:.0f} us of CPU a "
        f"call, both unsampled; {total} samples"
    )
    print(table("\nown time", own, total, options.top, seen.cpu_us))
    print(table("\nwith callees", whole, total, options.top, seen.cpu_us))
    return 0


if __name__ == "__main__":
    sys.exit(main())
