"""``python -m benchmarks.growth [PART]...``: how cost grows, into results/growth.json.

The parts are tenants, backends, prompts, streams and workers; one that is not run keeps the
figures it has. All of them take about six minutes. Needs what ``benchmarks/setup_peers.sh`` builds
(the load generator and the fake engine), two cores and, for the workers, the extra ``test``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.growth import backends, prompts, streams, tenants, workers
from benchmarks.growth.gate import Plan, Rig
from benchmarks.proxy import machine
from benchmarks.proxy.rig import ROOT, Cores, favour

PARTS = {
    "tenants": tenants.measure,
    "backends": backends.measure,
    "prompts": prompts.measure,
    "streams": streams.measure,
    "workers": workers.measure,
}
RESULTS = ROOT / "benchmarks/results/growth.json"
FULL = Plan(warm_up=0.5, loaded=1.5, single=0.5, idle=10.0)
QUICK = Plan(warm_up=0.3, loaded=0.8, single=0.3, idle=5.0)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="shorter runs, rougher figures")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--priority", type=int, default=0, help="nice value of all it starts; below 0 needs root"
    )
    parser.add_argument(
        "--lock", type=Path, help="a file that is locked while a case is measured, for others"
    )
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.setpriority(os.PRIO_PROCESS, 0, options.priority)
    favour(os.getpid(), options.priority)
    run: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for part in options.parts or PARTS:
        about = machine.describe()
        with tempfile.TemporaryDirectory(prefix="poolgate-growth-") as folder:
            rig = Rig(Cores.of_this_machine(), Path(folder), QUICK if options.quick else FULL)
            rig.lock = options.lock
            rows = PARTS[part](rig, say)
        run[part] = {
            "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": about,
            "calls": rig.calls,
            "rows": rows,
        }
        options.out.write_text(json.dumps(run, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
