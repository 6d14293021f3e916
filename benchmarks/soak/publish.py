"""``python -m benchmarks.soak.publish REPORT...``: a recorded run's parts into docs/soak.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.proxy.publish import placed
from benchmarks.soak.report import markdown

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/soak.md")
    options = parser.parse_args()
    tables = "\n\n".join(markdown(json.loads(report.read_text())) for report in options.reports)
    options.page.write_text(placed(options.page.read_text(), tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
