"""``python -m benchmarks.counting``: decisions against full counts, bounds, the short way.

Each cold figure is the first call of a fresh process on a text drawn for that round; the sides
take turns on the same text. Writes counting.json and counting.md. About five minutes.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.counting import once, report, texts, tightness, under_bound
from benchmarks.proxy import machine
from benchmarks.proxy.publish import placed
from benchmarks.proxy.rig import NATIVE, ROOT, favour
from gateway.tokens.assets import AssetStore
from gateway.tokens.libraries import load_encoder

SIZE = 4_000_000
LIMIT = 681_273
PAIRS = (("qwen3", "tokenizers"), ("o200k_base", "tiktoken"))
TEXTS = ("prose", "code", "fresh words")
WARM_CALLS = 3
PACKAGES = ("poolgate", "fastokens", "tokenizers", "tiktoken", "numpy", "aiohttp")


def decisions(rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each text, tokenizer and side of the limit: medians over rounds."""
    with tempfile.TemporaryDirectory(prefix="poolgate-counting-") as folder:
        for tokenizer, library in PAIRS:
            for kind in TEXTS:
                files = [_files(Path(folder), tokenizer, kind, seed) for seed in range(rounds)]
                for part in ("over", "at"):
                    row = _compare(tokenizer, [pair[part] for pair in files])
                    yield {"part": part, "text": kind, "library": library, **row}
                    say(f"{part} {kind} {tokenizer}: {row}")


def _files(folder: Path, tokenizer: str, kind: str, seed: int) -> dict[str, Path]:
    """4 MB, and as much of its beginning as the limit allows."""
    text = texts.KINDS[kind](SIZE, random.Random(f"{kind} {seed}"))
    encoder = load_encoder(AssetStore.open().resolve(tokenizer))
    end = len(text)
    while (tokens := encoder.count(text[:end])) > LIMIT:
        end = int(end * min(0.9999, LIMIT / tokens))
    found = {}
    for part, content in (("over", text), ("at", text[:end])):
        found[part] = folder / f"{tokenizer} {kind} {seed} {part}.txt"
        found[part].write_text(content, "utf-8")
    return found


def _compare(tokenizer: str, paths: Sequence[Path]) -> dict[str, Any]:
    """Both sides on the same texts in turn."""
    sides: dict[str, list[dict[str, Any]]] = {once.POOLGATE: [], once.REFERENCE: []}
    for path in paths:
        for side, taken in sides.items():
            taken.append(once.run(side, tokenizer, path, LIMIT, WARM_CALLS))
    cold, warm, library_cold, library_warm = (
        statistics.median(one[key] for one in sides[side]) * 1e3
        for side in sides
        for key in ("cold_s", "warm_s")
    )
    return {
        "tokenizer": tokenizer,
        "cold_ms": cold,
        "warm_ms": warm,
        "library_cold_ms": library_cold,
        "library_warm_ms": library_warm,
        "cold_ratio": library_cold / cold,
        "warm_ratio": library_warm / warm,
        "answers": {side: taken[0]["answer"] for side, taken in sides.items()},
    }


def publish(run: Path, page: Path) -> None:
    """The run's tables between the page's markers."""
    _, _, tables = report.markdown(json.loads(run.read_text())).partition("\n")
    page.write_text(placed(page.read_text(), tables.replace("\n## ", "\n### ")))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--http-seconds", type=float, default=3.0, help="a peer and round")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument(
        "--priority", type=int, default=0, help="nice value of all it starts; below 0 needs root"
    )
    parser.add_argument(
        "--publish", action="store_true", help="measure nothing: put the last run into the docs"
    )
    options = parser.parse_args()
    if options.publish:
        publish(options.out / "counting.json", ROOT / "docs/performance-counting.md")
        return 0
    os.setpriority(os.PRIO_PROCESS, 0, options.priority)
    favour(os.getpid(), options.priority)
    about = machine.describe()
    has_rig = (NATIVE / "load").exists()
    run = {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": about,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "rounds": options.rounds,
        "priority": options.priority,
        "limit": LIMIT,
        "under_bound": {
            "steps_us": under_bound.steps(),
            "http": under_bound.over_http(3, options.http_seconds) if has_rig else {},
        },
        "tightness": tightness.as_json(),
        "decisions": list(decisions(options.rounds)),
    }
    text = report.markdown(run)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "counting.json").write_text(json.dumps(run, indent=1) + "\n")
    (options.out / "counting.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
