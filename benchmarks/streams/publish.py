"""``python -m benchmarks.streams.publish``: the last run's tables into their page of docs."""

from __future__ import annotations

import json
import sys

from benchmarks.proxy.publish import ROOT, placed
from benchmarks.streams.report import markdown


def main() -> int:
    run = json.loads((ROOT / "benchmarks/results/streams.json").read_text())
    page = ROOT / "docs/performance-streams.md"
    page.write_text(placed(page.read_text(), markdown(run)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
