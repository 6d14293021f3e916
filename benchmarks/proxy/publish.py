"""``python -m benchmarks.proxy.publish``: the last run's tables into docs/performance.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.proxy.report import markdown

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- tables of the last run: begin -->", "<!-- end -->"


def placed(page: str, tables: str, begin: str = BEGIN) -> str:
    """``page`` with new text between its two markers. Raises ValueError where they are missing."""
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the page needs the lines {begin} and {END}")
    return f"{before}{begin}\n\n{tables.strip()}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=ROOT / "benchmarks/results/proxy.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/performance.md")
    options = parser.parse_args()
    tables = markdown(json.loads(options.run.read_text())).replace("\n## ", "\n### ")
    tables = tables.replace("# Proxies", "### Proxies", 1)
    options.page.write_text(placed(options.page.read_text(), tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
