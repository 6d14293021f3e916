"""``python -m benchmarks.integrity.fingerprints``: what they find, what they cost, what gets out.

Text is that of this machine (docstrings, manual pages); none of it is kept. Writes
fingerprints.json and fingerprints.md to benchmarks/results. About ten minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.integrity import leaks, local_texts
from benchmarks.integrity.costs import costs
from benchmarks.integrity.detection import SCHEME, Detector, apart, false_alarms, recall
from benchmarks.integrity.stats import told
from benchmarks.proxy import machine
from gateway.core.fingerprint.shingles import SPAN, WINDOW, KnownText
from gateway.core.fingerprint.verdict import Thresholds

RESULTS = Path(__file__).resolve().parents[1] / "results"
LONG_PROMPT = 3_000_000  # characters


def measure(trials: int, answers: int, rounds: int) -> dict[str, Any]:
    """The whole run."""
    docs = apart(local_texts.package_docs())
    names = sorted(docs)
    random.Random(5).shuffle(names)
    half = len(names) // 2
    sent = {name: docs[name] for name in names[:half]}
    others = {name: docs[name] for name in names[half:]}
    detector = Detector(sent)
    limits = Thresholds()
    return {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.describe(),
        "window": WINDOW,
        "span": SPAN,
        "weak": limits.weak,
        "strong": limits.strong,
        "tenants": len(sent),
        "indexed_bytes": sum(map(len, detector.texts)),
        "recall": list(recall(detector, sent, trials)),
        "false_alarms": {
            "manual pages": false_alarms(detector, local_texts.manual_pages().values(), answers),
            "other packages' docstrings": false_alarms(detector, others.values(), answers),
            "the same, licences declared public": false_alarms(
                detector, others.values(), answers, KnownText(SCHEME, local_texts.licences())
            ),
        },
        "costs": costs(detector, "\n".join(docs.values())[:LONG_PROMPT]),
        "leaks": leaks.measured([docs[name] for name in names if len(docs[name]) > 50_000], rounds),
    }


def markdown(run: Mapping[str, Any]) -> str:
    """The run as tables."""
    about = run["machine"]
    lines = [
        f"# Fingerprints, {run['when']}",
        "",
        f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, load "
        f"{about['load_average_before']:.2f} before. Windows of {run['window']} bytes, one of "
        f"{run['span']} kept; weak from {run['weak']}, strong from {run['strong']} covered bytes; "
        f"{run['tenants']} tenants with {run['indexed_bytes'] / 1e6:.1f} MB of text. Brackets are "
        "95% intervals.",
        "",
        "## Recall, by the tokens copied",
        "",
        "| tokens | bytes | any window | weak or strong | strong |",
        "| ---: | ---: | --- | --- | --- |",
    ]
    lines += [
        f"| {row['tokens']} | {row['bytes']} | {told(row['any'])} | {told(row['weak'])} "
        f"| {told(row['strong'])} |"
        for row in run["recall"]
    ]
    lengths = list(next(iter(run["false_alarms"].values()))["by_length"])
    lines += [
        "",
        "## False alarms, on text that no tenant sent",
        "",
        "| answers of 2,000 characters | strong | of these true copies | weak or strong | "
        + " | ".join(f"{length} bytes" for length in lengths)
        + " |",
        "| --- " * (len(lengths) + 4) + "|",
    ]
    lines += [
        f"| {row['answers']:,} of {kind} | {told(row['strong'])} | {row['copies']} "
        f"| {told(row['weak'])} | "
        + " | ".join(f"{row['by_length'][length]['percent']:.3f}%" for length in lengths)
        + " |"
        for kind, row in run["false_alarms"].items()
    ]
    return "\n".join([*lines, "", *_costs(run["costs"]), "", *_leaks(run["leaks"]), ""])


def _costs(found: Mapping[str, Any]) -> list[str]:
    return [
        "## Costs",
        "",
        "| what | median |",
        "| --- | ---: |",
        f"| 1,000 prompt tokens: windows, on a thread | {found['windows_us']:.0f} µs |",
        f"| the same: atoms, on a thread | {found['atoms_us']:.0f} µs |",
        f"| the same: into memory, on the event loop | {found['write_us']:.0f} µs |",
        f"| the longest step of that but one in a hundred | {found['longest_write_ms']:.2f} ms |",
        f"| windows of a prompt of {found['prompt_tokens']:,} tokens "
        f"| {found['hash_whole_prompt_ms']:.0f} ms |",
        f"| 1,000 streamed tokens: events to text | {found['events_us']:.0f} µs |",
        f"| the same: windows, looked up | {found['stream_us']:.0f} µs |",
        f"| the same: atoms | {found['stream_atoms_us']:.0f} µs |",
        f"| 1,000 tokens of a whole answer: windows | {found['whole_us']:.0f} µs |",
        f"| memory for a million prompt tokens | {found['memory_mb_per_million']:.1f} MB |",
    ]


def _leaks(found: Mapping[str, Any]) -> list[str]:
    rows = [
        f"| {row['from']} to {row['to'] - 1} | {row['found']['of']} | {told(row['found'])} |"
        for row in found["by_length"]
    ]
    return [
        f"## The incident, simulated: {found['rounds']} over-pool answers, streamed",
        "",
        "| longest foreign stretch, bytes | answers | found |",
        "| --- | ---: | --- |",
        *rows,
        "",
        f"Blocked, {found['cut']} were cut; of the longest foreign stretch the client had seen "
        f"{found['let_out_median']} bytes (median) and {found['let_out_most']} at most. "
        f"{found['looked_complete']} of them looked complete. With no fault in the engine "
        f"{found['clean'].get('hits', 0)} of {found['clean']['of']:,} answers were withheld.",
    ]


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="runs copied of each length")
    parser.add_argument("--answers", type=int, default=20_000, help="clean answers of each kind")
    parser.add_argument("--rounds", type=int, default=300, help="over-pool requests")
    given = parser.parse_args()
    logging.getLogger("poolgate").setLevel(logging.ERROR)
    run = measure(given.trials, given.answers, given.rounds)
    RESULTS.mkdir(exist_ok=True)
    RESULTS.joinpath("fingerprints.json").write_text(json.dumps(run, indent=1) + "\n", "utf-8")
    RESULTS.joinpath("fingerprints.md").write_text(markdown(run), "utf-8")
    print(markdown(run))


if __name__ == "__main__":
    main()
