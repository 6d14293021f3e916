"""``python -m benchmarks.streams``: streams through poolgate and its peers, on one core each.

Ever more streams of 50 events a second, until a proxy falls behind; then the memory that open
streams take. Writes ``benchmarks/results/streams.json``. Exit 0 unless a proxy broke a stream.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.proxy import machine, peers
from benchmarks.proxy.__main__ import WAKE_SECONDS, awake, say
from benchmarks.proxy.rig import ROOT, Cores, FakeEngine, favour
from benchmarks.proxy.traffic import Body, chat_body, engine_routes
from benchmarks.streams import report, rig
from benchmarks.streams.contenders import ALL_CHECKS, PEERS

REMEMBERED = (peers.BASELINE, f"{peers.BASELINE} (uvloop)", peers.POOLGATE, ALL_CHECKS)


class Bench:
    """One run: what was asked for and what was found."""

    def __init__(self, options: argparse.Namespace, rigged: rig.Rig, probe: Body) -> None:
        self._options = options
        self._rig = rigged
        self._probe = probe
        self.samples: list[dict[str, Any]] = []
        self.memory: dict[str, dict[int, int]] = {}
        self.skipped: dict[str, str] = {}

    def run(self, peer: peers.Peer) -> None:
        """One proxy from its start to its end; the others are not there meanwhile."""
        cores, engine, work = self._rig.cores, self._rig.engine, self._rig.work
        self._rig.quiet()
        try:
            one = peers.start(peer, engine, cores.proxy, work, self._probe)
        except (OSError, RuntimeError) as failure:
            self.skipped[peer.name] = str(failure)
            say(f"skipped {peer.name}: {failure}")
            return
        try:
            with awake(one):
                self._measure(one)
                self._remember(one)
        except (RuntimeError, TimeoutError, rig.Failed, rig.Overloaded) as failure:
            self.skipped[peer.name] = str(failure)
            say(f"gave up on {peer.name}: {failure}")
        finally:
            if one.child:
                one.child.stop()

    def _measure(self, one: peers.Running) -> None:
        options = self._options
        for streams in options.streams:
            self._rig.quiet()
            peers.wait_until_it_answers(one, self._probe, WAKE_SECONDS)
            try:
                got = self._rig.measure(one, streams, options.seconds, options.together)
            except rig.Overloaded as failure:
                say(f"{streams:>6,} streams {one.peer.name}: {failure}")
                return
            sample = {
                "peer": one.peer.name,
                "streams": streams,
                "together": options.together,
                "offered": streams * 1e6 / rig.script.INTERVAL_US,
                **got,
            }
            self.samples.append(sample)
            say(
                f"{streams:>6,} streams {one.peer.name:<30}{got['per_second']:>9,.0f} events/s"
                f"  late p50 {got['p50_us']:,} p99 {got['p99_us']:,} max {got['max_us']:,} us"
                f"  cpu {got['cpu'] * 1e6 / max(1, got['events']):.1f}"
                f" (user {got['user'] * 1e6 / max(1, got['events']):.1f}) us"
                f"  core {got['busy']:.0%}, foreign {got['foreign']:.0%}"
                f"  whole {got['whole']:,}"
            )
            if report.behind(sample):
                return
            if got["whole"] < streams:
                raise rig.Failed(f"{streams - got['whole']} of {streams} streams were not whole")

    def _remember(self, one: peers.Running) -> None:
        if one.peer.name not in REMEMBERED or not self._options.held:
            return
        kept = {count: self._rig.held(one, count) for count in (0, *self._options.held)}
        self.memory[one.peer.name] = kept
        say(f"{one.peer.name}: " + ", ".join(f"{n:,}: {size:,}" for n, size in kept.items()))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/streams.json")
    parser.add_argument("--add", action="store_true", help="to what the file holds already")
    parser.add_argument("--streams", type=int, nargs="*", default=[100, 200, 300, 400, 600, 1_000])
    parser.add_argument("--held", type=int, nargs="*", default=[1_000, 2_000])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--together", type=int, default=1, help="streams with events at one time")
    parser.add_argument("--priority", type=int, default=0, help="nice value; below 0 needs root")
    parser.add_argument("--only", nargs="*", metavar="PEER", help="poolgate, nginx, direct...")
    return parser.parse_args(argv)


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.setpriority(os.PRIO_PROCESS, 0, options.priority)
    favour(os.getpid(), options.priority)
    chosen = [peer for name, peer in PEERS.items() if not options.only or name in options.only]
    with tempfile.TemporaryDirectory(prefix="poolgate-streams-") as folder:
        work, cores = Path(folder), Cores.of_this_machine()
        about = machine.describe()
        engine = FakeEngine(cores.rig, work)
        try:
            engine.answer(engine_routes())
            bench = Bench(options, rig.Rig(cores, engine, work), chat_body("probe", 1_000))
            for peer in chosen:
                bench.run(peer)
        finally:
            engine.child.stop()
    found = {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": about,
        "versions": {p.name: peers.version_of(p) for p in chosen if p.needs.exists()},
        "seconds": options.seconds,
        "skipped": bench.skipped,
        "samples": bench.samples,
        "memory": bench.memory,
    }
    if options.add and options.out.exists():
        found = _added(json.loads(options.out.read_text()), found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(report.markdown(found))
    return 1 if bench.skipped else 0


def _added(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Both runs as one; what was measured again is replaced."""
    again = {(sample["peer"], sample["streams"]) for sample in now["samples"]}
    kept = [x for x in before["samples"] if (x["peer"], x["streams"]) not in again]
    measured = {x["peer"] for x in now["samples"]}
    return {
        **now,
        "versions": {**before["versions"], **now["versions"]},
        "skipped": {n: w for n, w in before["skipped"].items() if n not in measured}
        | now["skipped"],
        "samples": kept + now["samples"],
        "memory": {**before["memory"], **now["memory"]},
    }


if __name__ == "__main__":
    sys.exit(main())
