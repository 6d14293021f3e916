"""``python -m benchmarks.proxy``: one run, a JSON file and a markdown table.

Bounded: the sum of its rounds and at most two minutes for each peer to start. Exit 0 when every
peer that could be started was measured without a wrong answer, 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.proxy import machine, peers, reference, report
from benchmarks.proxy.rig import ROOT, Cores, FakeEngine, Load, call, core_watch, favour
from benchmarks.proxy.traffic import CHAT_PATH, Body, chat_answer, chat_body, engine_routes

SIZES = {"1 kB": 1_000, "400 kB": 400_000, "4 MB": 4_000_000}
WAKE_SECONDS = 15.0
STAMPS_A_RUN = 10**9


class WrongAnswers(Exception):
    """A proxy answered something else, or the upstream saw another number of calls."""


@dataclass(slots=True)
class Bench:
    """One run's state: who runs, what was measured."""

    options: argparse.Namespace
    cores: Cores
    engine: FakeEngine
    load: Load
    running: list[peers.Running] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    samples: list[report.Sample] = field(default_factory=list)
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    calls: int = 0

    def start(self, chosen: Sequence[peers.Peer], work: Path, probe: Body) -> None:
        self._teach(probe)
        for peer in chosen:
            try:
                started = peers.start(peer, self.engine, self.cores.proxy, work, probe)
            except (OSError, RuntimeError) as failure:
                self.skipped[peer.name] = str(failure)
                say(f"skipped {peer.name}: {failure}")
                continue
            self.running.append(started)
            if started.child:
                started.child.pause()
            say(f"started {peer.name} {peers.version_of(peer)}")

    def measure(self, body: Body) -> None:
        self._teach(body)
        for number in range(self.options.rounds):
            turn = number % max(1, len(self.running))
            for one in (*self.running[turn:], *self.running[:turn]):
                if one.peer.name in self.skipped:
                    continue
                with awake(one):
                    try:
                        self.samples.append(self._round(one, body, number))
                    except (RuntimeError, TimeoutError, WrongAnswers) as failure:
                        self.skipped[one.peer.name] = f"{body.name}: {failure}"
                        say(f"gave up on {one.peer.name}: {failure}")

    def _teach(self, body: Body) -> None:
        """Lets the engine's usage tell the true count of this body."""
        self.prompt_tokens[body.name] = reference.prompt_tokens(body)
        self.engine.set(CHAT_PATH, chat_answer(self.prompt_tokens[body.name]))

    def _round(self, one: peers.Running, body: Body, number: int) -> report.Sample:
        peers.wait_until_it_answers(one, body, WAKE_SECONDS)
        self._run(one, body, self.options.connections, self.options.warm_up)
        with core_watch(self.cores.proxy, [one.child] if one.child else []) as shares:
            loaded = self._run(one, body, self.options.connections, self.options.seconds)
        single = self._run(one, body, 1, self.options.single_seconds)
        say(
            f"{body.name:>7} round {number + 1} {one.peer.name:<30}"
            f"{loaded['per_second']:>10,.1f} r/s  one {single['p50_us']:>9,.0f} us"
            f"  cpu {shares['cpu'] * 1e6 / loaded['calls']:,.0f} us"
            f"  core {shares['busy']:.0%}, foreign {shares['foreign']:.0%}"
        )
        return report.Sample(
            peer=one.peer.name,
            body=body.name,
            round=number,
            per_second=loaded["per_second"],
            p50_us=loaded["p50_us"],
            p99_us=loaded["p99_us"],
            single_p50_us=single["p50_us"],
            single_p99_us=single["p99_us"],
            cpu_us=shares["cpu"] * 1e6 / loaded["calls"],
            proxy_busy=shares["busy"],
            proxy_foreign=shares["foreign"],
            calls=loaded["calls"] + single["calls"],
        )

    def _run(
        self, one: peers.Running, body: Body, connections: int, seconds: float
    ) -> dict[str, Any]:
        self.runs += 1
        before = self.engine.chats()
        got = self.load.run(
            one.port, body, connections, seconds, self.runs * STAMPS_A_RUN, one.peer.key
        )
        seen = self.engine.chats() - before
        if got["ok"] != got["calls"]:
            raise WrongAnswers(f"not every answer was right: {got}; {_log_of(one)}")
        if seen != got["calls"]:
            raise WrongAnswers(f"{got['calls']} calls, but the upstream saw {seen}")
        self.calls += got["calls"]
        return got

    def checks(self) -> dict[str, int]:
        """poolgate's own verdicts on the answers it relayed, from its metrics."""
        gate = next((one for one in self.running if one.peer.name == peers.POOLGATE), None)
        if gate is None:
            return {}
        with awake(gate):
            _, text, _ = call(f"http://127.0.0.1:{gate.admin}/metrics")
        found: dict[str, int] = {}
        for line in text.decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("poolgate_checks_total{") and float(value):
                labels = name.partition("{")[2].rstrip("}").replace('"', "")
                found[labels] = int(float(value))
        return found

    def stop(self) -> None:
        for one in self.running:
            if one.child:
                one.child.stop()
        self.engine.child.stop()


@contextlib.contextmanager
def awake(one: peers.Running) -> Iterator[None]:
    """Only the peer under test runs."""
    if one.child:
        one.child.resume()
    try:
        yield
    finally:
        if one.child:
            one.child.pause()


def _log_of(one: peers.Running) -> str:
    return peers.last_words(one.child) if one.child else ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--name", default="proxy", help="files are NAME.json and NAME.md")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="at load, a round")
    parser.add_argument("--single-seconds", type=float, default=2.0, help="at one connection")
    parser.add_argument("--warm-up", type=float, default=0.5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument(
        "--priority", type=int, default=0, help="nice value of all it starts; below 0 needs root"
    )
    parser.add_argument("--only", nargs="*", metavar="PEER", help="poolgate, nginx, direct...")
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), default=list(SIZES))
    return parser.parse_args(argv)


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.setpriority(os.PRIO_PROCESS, 0, options.priority)
    favour(os.getpid(), options.priority)
    chosen = [p for p in peers.ALL if not options.only or p.name in options.only]
    with tempfile.TemporaryDirectory(prefix="poolgate-bench-") as folder:
        work = Path(folder)
        cores = Cores.of_this_machine()
        about = machine.describe()
        bench = Bench(options, cores, FakeEngine(cores.rig, work), Load(cores.rig, work))
        try:
            bench.engine.answer(engine_routes())
            bodies = [chat_body(name, SIZES[name]) for name in options.sizes]
            bench.start(chosen, work, bodies[0])
            for body in bodies:
                bench.measure(body)
            checks = bench.checks()
        finally:
            bench.stop()
    run = {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": about,
        "versions": {p.name: peers.version_of(p) for p in chosen if p.needs.exists()},
        "plan": {
            name: getattr(options, name)
            for name in (
                "rounds",
                "seconds",
                "single_seconds",
                "warm_up",
                "connections",
                "priority",
            )
        },
        "skipped": bench.skipped,
        "calls": bench.calls,
        "prompt_tokens": bench.prompt_tokens,
        "poolgate_checks": checks,
        **report.as_json(bench.samples, report.lines(bench.samples)),
    }
    text = report.markdown(run)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.name}.json").write_text(json.dumps(run, indent=1) + "\n")
    (options.out / f"{options.name}.md").write_text(text)
    print(text)
    return 1 if bench.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
