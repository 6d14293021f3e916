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
    """Measure what is asked for, keep the rest of the last run, write."""
    parser = argparse.ArgumentParser(prog="benchmarks.limits")
    parser.add_argument("--rounds", type=int, default=7, help="0 keeps the last costs")
    parser.add_argument("--runs", type=int, default=200, help="0 keeps the last traffic")
    args = parser.parse_args()
    file = RESULTS / "limits.json"
    run: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if args.rounds:
        run["costs"] = {**circumstances(), "rounds": args.rounds}
        with valkey_server.server() as server:
            run["costs"] |= {"versions": versions(server), "rows": list(costs(server, args.rounds))}
    if args.runs:
        run["traffic"] = circumstances()
        with valkey_server.server() as server:
            runs = limits_traffic.runs(server.url, processes=PROCESSES, rounds=args.runs)
            run["traffic"] |= traffic(list(runs))
    file.write_text(json.dumps(run, indent=1) + "\n")
    (RESULTS / "limits.md").write_text(markdown(run))
    print(markdown(run))


def circumstances() -> dict[str, Any]:
    """When and on what."""
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": describe(),
        "priority": f"nice {os.nice(0)}",
    }


def costs(server: valkey_server.Server, rounds: int) -> Iterator[dict[str, Any]]:
    """Contenders take turns, so that a busy minute of the machine is everybody's."""
    for store in STORES:
        for callers in CALLERS:
            found: dict[str, list[list[float]]] = {name: [] for name in CONTENDERS}
            for _ in range(rounds):
                for name, pairs in found.items():
                    with server.client() as client:  # two strategies of limits share a key
                        client.flushall()
                    pairs.append(
                        once(name, "memory" if store == "memory" else server.url, callers, store)
                    )
            for name, pairs in found.items():
                wall, processor = zip(*pairs, strict=True)
                yield {
                    "store": store,
                    "callers": callers,
                    "name": name,
                    "wall_us": median(wall),
                    "least_wall_us": min(wall),
                    "most_wall_us": max(wall),
                    "processor_us": median(processor),
                }


def once(name: str, url: str, callers: int, store: str) -> list[float]:
    """One measurement in a process of its own."""
    python = sys.executable if name.startswith(OURS) else str(PEERS_PYTHON)
    script = Path(__file__).with_name("contenders.py")
    told = subprocess.run(
        [python, script, name, url, str(callers), str(DECISIONS[store])],
        check=True,
        capture_output=True,
        text=True,
    )
    pair: list[float] = json.loads(told.stdout)
    return pair


def versions(server: valkey_server.Server) -> dict[str, str]:
    """Of the server and of the libraries that were measured."""
    code = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({n: m.version(n) for n in ('limits', 'throttled-py', 'redis')}))"
    )
    told = subprocess.run([PEERS_PYTHON, "-c", code], check=True, capture_output=True, text=True)
    with server.client() as client:
        valkey = client.info("server")["valkey_version"]
    return {"valkey": valkey, **json.loads(told.stdout)}


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
    costs, held = run["costs"], run["traffic"]
    lines = [
        f"{setting(costs)} Median of {costs['rounds']} rounds in turns. Versions: "
        + ", ".join(f"{name} {value}" for name, value in costs["versions"].items())
        + ".",
    ]
    for store in STORES:
        for callers in CALLERS:
            rows = [r for r in costs["rows"] if r["store"] == store and r["callers"] == callers]
            title = "Memory" if store == "memory" else "Valkey"
            lines += ["", f"### {title}, {callers} caller{'s' * (callers > 1)}", "", *table(rows)]
    lines += [
        "",
        f"### {held['runs']} seeded runs from {held['processes']} processes",
        "",
        setting(held),
        f"{held['quota']}: {held['asked']:,} asked, {held['admitted']:,} admitted. Runs over burst "
        f"+ rate x window: {held['over']}; under 99 % of what one bucket admits of the same "
        f"requests: {held['under']}. "
        f"Share of what the whole window allows: {held['lowest']:.1%} to {held['highest']:.2%}.",
        "",
    ]
    return "\n".join(lines)


def setting(part: Mapping[str, Any]) -> str:
    """One sentence on when and where."""
    machine = part["machine"]
    return (
        f"{part['when']}. {machine['cpu']}, {machine['cores']} cores"
        f"{' (virtual)' if machine['virtual'] else ''}, Linux {machine['kernel']}, Python "
        f"{machine['python']}, load {machine['load_average_before']:.2f} before; "
        f"{part['priority']}."
    )


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Contenders, and their ratio to poolgate with one quota."""
    ours = next(row for row in rows if row["name"] == OURS)
    yield "| limiter | µs a decision | least to most | ratio | processor µs | ratio |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        yield (
            f"| {row['name']} | {row['wall_us']:.1f} | {row['least_wall_us']:.1f} to "
            f"{row['most_wall_us']:.1f} | {row['wall_us'] / ours['wall_us']:.2f} | "
            f"{row['processor_us']:.1f} | {row['processor_us'] / ours['processor_us']:.2f} |"
        )


if __name__ == "__main__":
    main()
