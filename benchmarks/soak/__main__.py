"""``python -m benchmarks.soak [--calls 50000] [--restarts 50] [--seed N]``: 1 where a claim breaks.

The same seed makes the same calls and the same timetable of faults.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic

import uvloop

from benchmarks.proxy import machine
from benchmarks.soak import chaos, judge, report, rolling
from benchmarks.soak.callers import Seen

LONG = 2000  # calls, from which on memory and coverage are judged
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    options = _options()
    seed = options.seed
    print(f"seed {seed}: {options.calls} calls, {options.restarts} restarts", flush=True)
    tell = partial(print, flush=True)
    about = {
        "when": datetime.now(UTC).date().isoformat(),
        "seed": seed,
        "calls": options.calls,
        "restarts": options.restarts,
        "machine": machine.describe(),
    }
    began = monotonic()
    claims: list[judge.Claim] = []
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        if options.calls:
            ran = uvloop.run(chaos.run(seed, options.calls, options.callers, folder, tell))
            page = (ROOT / "docs/metrics.md").read_text()
            claims += judge.judge(ran, judge.documented_outcomes(page), long=options.calls >= LONG)
            print(report.text(claims), flush=True)
            seen += ran.seen
            _keep(options.keep, folder)
        if options.restarts:
            rolled = uvloop.run(
                rolling.run(seed, options.restarts, min(24, options.callers), folder, tell)
            )
            rolled_claims = rolling.judge(rolled)
            print(report.text(rolled_claims), flush=True)
            claims += rolled_claims
    about["took_s"] = round(monotonic() - began, 1)
    found = report.as_json(claims, seen, about)
    if options.report:
        options.report.write_text(json.dumps(found, indent=1) + "\n")
    print(f"seed {seed}: {'all held' if found['held'] else 'BROKEN'}")
    return 0 if found["held"] else 1


def _keep(where: Path | None, folder: Path) -> None:
    """What the gateway wrote, for looking into."""
    if where is not None:
        where.mkdir(parents=True, exist_ok=True)
        for file in (*folder.glob("*.err"), *folder.glob("*.out")):
            (where / file.name).write_bytes(file.read_bytes())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--calls", type=int, default=50_000)
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--callers", type=int, default=48, help="calls at the same time")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--report", type=Path, help="where to write everything as JSON")
    parser.add_argument("--keep", type=Path, help="where to keep what the gateway wrote")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
