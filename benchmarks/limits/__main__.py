"""``python -m benchmarks.limits [--rounds N] [--runs N]``: results/limits.json and limits.md.

Beside ``limits`` and ``throttled-py``, which ``benchmarks/setup_limiters.sh`` installs apart from
poolgate's own environment. ``--runs`` is how many seeded runs of bursty traffic from eight
processes are recorded as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.limits.contenders import CONTENDERS
from benchmarks.proxy.machine import describe

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
PEERS_PYTHON = ROOT / ".bench/limiters/bin/python"
OURS = "poolgate"
STORES = ("memory", "server")
CALLERS = (1, 16)
DECISIONS = {"memory": 20_000, "server": 2_000}
PROCESSES = 8

sys.path.insert(0, str(ROOT / "tests"))  # the servers and the traffic of the tests
import limits_traffic  # noqa: E402
import valkey_server  # noqa: E402


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(prog="benchmarks.limits")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()
    machine = describe()
    with valkey_server.server() as server:
        rows = list(costs(server, args.rounds))
        with server.client() as client:
            version = client.info("server")["valkey_version"]
    with valkey_server.server() as server:
        runs = list(limits_traffic.runs(server.url, processes=PROCESSES, rounds=args.runs))
    run = {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine,
        "priority": f"nice {os.nice(0)}",
        "versions": {"valkey": version, **versions()},
        "rounds": args.rounds,
        "costs": rows,
        "traffic": traffic(runs),
    }
    (RESULTS / "limits.json").write_text(json.dumps(run, indent=1) + "\n")
    (RESULTS / "limits.md").write_text(markdown(run))
    print(markdown(run))


def costs(server: valkey_server.Server, rounds: int) -> Iterator[dict[str, Any]]:
    """Contenders take turns, so that a busy minute of the machine is everybody's."""
    for store in STORES:
        for callers in CALLERS:
            found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
            for _ in range(rounds):
                for name, microseconds in found.items():
                    with server.client() as client:  # two strategies of limits share a key
                        client.flushall()
                    microseconds.append(
                        once(name, "memory" if store == "memory" else server.url, callers, store)
                    )
            for name, microseconds in found.items():
                yield {
                    "store": store,
                    "callers": callers,
                    "name": name,
                    "us": median(microseconds),
                    "least_us": min(microseconds),
                    "most_us": max(microseconds),
                }


def once(name: str, url: str, callers: int, store: str) -> float:
    """One measurement in a process of its own."""
    python = sys.executable if name.startswith(OURS) else str(PEERS_PYTHON)
    script = Path(__file__).with_name("contenders.py")
    told = subprocess.run(
        [python, script, name, url, str(callers), str(DECISIONS[store])],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(told.stdout))


def versions() -> dict[str, str]:
    """Of the libraries that were measured."""
    code = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({n: m.version(n) for n in ('limits', 'throttled-py', 'redis')}))"
    )
    told = subprocess.run([PEERS_PYTHON, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(told.stdout)
    return found


def traffic(runs: Sequence[limits_traffic.Run]) -> dict[str, Any]:
    """How close all runs came to what the quota allows, and whether any came over it."""
    return {
        "processes": PROCESSES,
        "quota": f"{limits_traffic.AMOUNT} each {limits_traffic.PERIOD:g} s, burst "
        f"{limits_traffic.BURST}",
        "runs": len(runs),
        "seeds": [run.seed for run in runs],
        "asked": sum(run.asked for run in runs),
        "admitted": sum(run.admitted for run in runs),
        "over": sum(run.admitted > run.most for run in runs),
        "under": sum(run.admitted < run.least for run in runs),
        "highest": max((run.admitted / run.most for run in runs), default=0.0),
        "lowest": min((run.admitted / run.most for run in runs), default=0.0),
    }


def markdown(run: Mapping[str, Any]) -> str:
    """The tables, with ratios to poolgate's one quota."""
    machine = run["machine"]
    lines = [
        f"{run['when']}. {machine['cpu']}, {machine['cores']} cores"
        f"{' (virtual)' if machine['virtual'] else ''}, Linux {machine['kernel']}, Python "
        f"{machine['python']}, load {machine['load_average_before']:.2f} before; "
        f"{run['priority']}. Median of {run['rounds']} rounds in turns.",
        "Versions: "
        + ", ".join(f"{name} {value}" for name, value in run["versions"].items())
        + ".",
    ]
    for store in STORES:
        for callers in CALLERS:
            rows = [r for r in run["costs"] if r["store"] == store and r["callers"] == callers]
            ours = next(row["us"] for row in rows if row["name"] == OURS)
            title = "Memory" if store == "memory" else "Valkey"
            lines += [
                "",
                f"### {title}, {callers} caller{'s' * (callers > 1)}",
                "",
                "| limiter | µs a decision | least to most | to poolgate's one quota |",
                "| --- | ---: | ---: | ---: |",
                *(
                    f"| {row['name']} | {row['us']:.1f} | {row['least_us']:.1f} to "
                    f"{row['most_us']:.1f} | {row['us'] / ours:.2f} |"
                    for row in rows
                ),
            ]
    held = run["traffic"]
    lines += [
        "",
        f"### {held['runs']} seeded runs from {held['processes']} processes",
        "",
        f"{held['quota']}: {held['asked']:,} asked, {held['admitted']:,} admitted. Runs over burst "
        f"+ rate x window: {held['over']}; under 99 % of it while all asked: {held['under']}. "
        f"Share of what the whole window allows: {held['lowest']:.1%} to {held['highest']:.2%}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
