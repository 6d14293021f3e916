"""``python -m benchmarks.integrity``: faults behind a gateway that is not told of them.

Each part starts a gateway process in front of a simulated engine with one fault, sends seeded
traffic of twenty tenants, and compares what clients got with the engine's oracle. Parts are run
all, or those named; each is put into benchmarks/results/integrity.json at once. ``--publish`` only
puts the tables of the last run into docs/integrity-proof.md. A part takes up to three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import fcntl
import json
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.integrity import answers, boundary, local_texts, pages
from benchmarks.integrity.detection import apart
from benchmarks.integrity.report import BEGIN, markdown
from benchmarks.integrity.rig import TENANTS
from benchmarks.proxy import machine
from benchmarks.proxy.publish import placed
from benchmarks.proxy.rig import ROOT

Part = Callable[[list[str], int], Coroutine[Any, Any, dict[str, Any]]]
RESULTS = ROOT / "benchmarks/results/integrity.json"
PAGE = ROOT / "docs/integrity-proof.md"
PARTS: dict[str, tuple[Part, int]] = {
    "gate_on": (boundary.gate_on, 10_000),
    "clean": (boundary.clean, 10_000),
    "latency": (pages.latency, 200),
    "latency_fast": (pages.latency_fast, 300),
    "swap": (answers.swap, 1_000),
    "swap_usage": (answers.swap_usage, 400),
    "salt": (answers.salt, 300),
    "empty200": (answers.empty200, 1_000),
    "server_info": (boundary.server_info, 300),
    "short_over_pool": (pages.short_over_pool, 200),
    "placements": (pages.placements, 400),
    "early_free": (pages.early_free, 300),
}


def sources() -> list[str]:
    """A text for each tenant; no two are copies of each other."""
    texts = apart(local_texts.package_docs()).values()
    return sorted(texts, key=len, reverse=True)[: len(TENANTS)]


def run(name: str, texts: list[str], scale: float) -> dict[str, Any]:
    """One part with what it was run on."""
    part, size = PARTS[name]
    about, began = machine.describe(), time.perf_counter()
    found = asyncio.run(part(texts, int(size * scale)))
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    took = time.perf_counter() - began
    return {"when": when, "seconds": took, "machine": about, "found": found}


def keep(path: Path, name: str, part: dict[str, Any]) -> dict[str, Any]:
    """Put a part among those of earlier runs; two runs may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        parts: dict[str, Any] = json.loads(file.read() or "{}")
        parts[name] = part
        file.truncate(0)
        file.write(json.dumps(parts, indent=1) + "\n")
    return parts


def main() -> None:
    """Run, record, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrity")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--publish", action="store_true", help="only put the last run into docs")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}")
    if given.publish:
        tables = markdown(json.loads(given.out.read_text()))
        PAGE.write_text(placed(PAGE.read_text(), tables, BEGIN))
        return
    texts = sources()
    for name in given.parts or PARTS:
        part = run(name, texts, given.scale)
        keep(given.out, name, part)
        print(name, json.dumps(part["found"], indent=1), f"{part['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    os.nice(5)
    main()
