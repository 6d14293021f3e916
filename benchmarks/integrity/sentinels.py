"""``python -m benchmarks.integrity.sentinels``: false positives, holding, and what it all costs.

Answers are windows of documentation (docstrings, manual pages), words drawn by their frequency
there, and, as a strain, words of the sentinels' own list. All are scanned as an answer is, for a
cluster of a thousand tenants. Writes benchmarks/results/sentinels.json and its tables; with
``--publish`` puts the last run's into docs/sentinels.md. Ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.integrity import local_texts, sentinel_costs
from benchmarks.proxy import machine
from benchmarks.proxy.publish import placed
from benchmarks.proxy.rig import ROOT
from gateway.core.lexicon import lexicon
from gateway.core.sentinel import Numbers, Sentinels, Sighting
from gateway.core.sentinel_channels import Watch
from gateway.tokens.assets import AssetStore

DAY = 86400.0
NOW = 1_800_000_000.0
TENANTS = [f"tenant-{number}" for number in range(1000)]
SHORTEST, LONGEST = 40, 240  # words of an answer
BATCH = 2000
BEGIN = "<!-- tables of the last run: begin -->"


@cache
def cluster() -> Sentinels:
    return Sentinels([b"a secret of the benchmark's own"], DAY, 3 * DAY, TENANTS)


@cache
def corpus() -> tuple[str, ...]:
    """The documentation's words with what stands around them, in order."""
    texts = [*local_texts.package_docs().values(), *local_texts.manual_pages().values()]
    return tuple("\n".join(texts).split(" "))


@cache
def vocabulary() -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The corpus's words, and cumulative counts to draw them by."""
    counts = Counter(corpus())
    total, ends = 0, []
    for count in counts.values():
        total += count
        ends.append(total)
    return tuple(counts), tuple(ends)


def windows(dice: random.Random) -> str:
    """Text as somebody wrote it."""
    length = dice.randint(SHORTEST, LONGEST)
    start = dice.randrange(len(corpus()) - length)
    return " ".join(corpus()[start : start + length])


def drawn(dice: random.Random) -> str:
    """Words by their frequency, in no order: neighbours nobody put together before."""
    words, ends = vocabulary()
    return " ".join(dice.choices(words, cum_weights=ends, k=dice.randint(SHORTEST, LONGEST)))


def half_listed(dice: random.Random) -> str:
    """Every other word from the list: runs of five and more in most answers."""
    words, ends = vocabulary()
    length = dice.randint(SHORTEST, LONGEST)
    common = dice.choices(words, cum_weights=ends, k=length)
    return " ".join(dice.choice(lexicon().words) if dice.random() < 0.5 else w for w in common)


def all_listed(dice: random.Random) -> str:
    """Nothing but listed words, every eighth one that begins sentinels: each MAC is tried."""
    first = [lexicon().words[number] for number in cluster().first_words(NOW)]
    words = lexicon().words
    return " ".join(
        dice.choice(first) if place % 8 == 0 else dice.choice(words)
        for place in range(dice.randint(SHORTEST, LONGEST))
    )


KINDS: dict[str, tuple[Callable[[random.Random], str], float]] = {
    "documentation": (windows, 0.5),
    "words by frequency": (drawn, 0.5),
    "half listed words": (half_listed, 0.02),
    "listed words only": (all_listed, 0.02),
}


class Reading:
    """The cluster's reading of eight words in an answer to the first tenant, counted."""

    def __init__(self) -> None:
        self.tried = self.sentinels = 0

    def __call__(self, numbers: Numbers) -> Sighting | None:
        self.tried += 1
        sighting = cluster().read(numbers, TENANTS[0], NOW)
        self.sentinels += sighting is not None
        return sighting


def batch(job: tuple[str, int]) -> Counter[str]:
    """Scan so many answers of a kind; what was met."""
    kind, seed = job
    make, _ = KINDS[kind]
    dice = random.Random(f"{kind} {seed}")
    met: Counter[str] = Counter(answers=BATCH)
    reading = Reading()
    watch = Watch(reading, cluster().first_words(NOW))
    numbers = lexicon().numbers
    for _ in range(BATCH):
        text = make(dice)
        words = text.split()
        met["words"] += len(words)
        met["listed"] += sum(word.strip(".,:;()'\"`").lower() in numbers for word in words)
        scanner = watch.scanner()
        met["found"] += len(scanner.feed(text))
        runs = scanner.close()
        met["runs"] += len(runs)
        met["partial"] += sum(cluster().partial(run, TENANTS[0], NOW) is not None for run in runs)
    met["tried"], met["sentinels"] = reading.tried, reading.sentinels
    return met


def false_positives(answers: int, processes: int) -> Iterator[dict[str, Any]]:
    """A row for each kind of text."""
    corpus()  # before the fork: read once
    vocabulary()
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for kind, (_, share) in KINDS.items():
            jobs = [(kind, seed) for seed in range(max(1, int(answers * share / BATCH)))]
            total: Counter[str] = sum(pool.imap_unordered(batch, jobs), Counter())
            row = {"text": kind, **total, "bound": 3 / total["answers"]}
            say(str(row))
            yield row


# --- holding ----------------------------------------------------------------------------------


def holding(tokenizer: str, tokens: int) -> dict[str, Any]:
    """Streams of one token an event: how many are held, and for how many further events.

    Beside it, what holding at any listed word would do, as the specification has it.
    """
    pieces = _tokens_of(tokenizer, tokens)
    starts = cluster().first_words(NOW)
    row: dict[str, Any] = {"tokenizer": tokenizer, "tokens": len(pieces)}
    for name, first in (("", starts), ("_any_listed", frozenset(range(4096)))):
        waits = list(_waits(pieces, Watch(Reading(), first)))
        row["held" + name] = len(waits)
        row["mean_events" + name] = statistics.fmean(waits) if waits else 0.0
        row["most_events" + name] = max(waits, default=0)
    return row


def _waits(pieces: Sequence[str], watch: Watch) -> Iterator[int]:
    """For each event that is held, how many more must come before it is released."""
    scanner = watch.scanner()
    ends: list[tuple[int, int]] = []
    for number, piece in enumerate(pieces):
        scanner.feed(piece)
        ends.append((number, scanner.end))
        needed = scanner.open_from
        while ends and (needed is None or ends[0][1] <= needed):
            if waited := number - ends.pop(0)[0]:
                yield waited


def _tokens_of(tokenizer: str, count: int) -> list[str]:
    import tokenizers  # noqa: PLC0415 - as the tests' oracle

    folder = AssetStore.open().resolve(tokenizer).folder
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = " ".join(corpus()[: count * 2])
    spans = library.encode(text, add_special_tokens=False).offsets[:count]
    return [text[start:end] for start, end in spans]


# --- the run ----------------------------------------------------------------------------------


def markdown(run: dict[str, Any]) -> str:
    """The tables for docs/sentinels.md."""
    about = run["machine"]
    lines = [
        f"Run of {run['when']}, {about['cpu']}, {about['usable_cores']} cores, Python"
        f" {about['python']}, other work on the machine (load {about['load_average_before']:.1f}"
        " before).",
        "",
        "| clean answers of | answers | words | share listed | eight words tried as a sentinel |"
        " runs of five | partial | sentinels |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['text']} | {row['answers']:,} | {row['words']:,} |"
        f" {row['listed'] / row['words']:.1%} | {row.get('tried', 0):,} |"
        f" {row.get('runs', 0):,} | {row.get('partial', 0)} | **{row.get('sentinels', 0)}** |"
        for row in run["false_positives"]
    ]
    clean = sum(row["answers"] for row in run["false_positives"])
    lines += [
        "",
        f"No sentinel in {clean:,} answers: under {3 / clean:.1e} an answer with 95 % confidence.",
        "",
        "| held, of one-token events | events | held | mean wait, events | longest |"
        " held if any listed word opened |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['tokenizer']} | {row['tokens']:,} | {row['held']:,} |"
        f" {row['mean_events']:.2f} | {row['most_events']} |"
        f" {row['held_any_listed'] / row['tokens']:.1%} |"
        for row in run["holding"]
    ]
    return "\n".join([*lines, "", *sentinel_costs.markdown(run["costs"])]) + "\n"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrity.sentinels")
    parser.add_argument("--answers", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200_000, help="of the streams held")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--publish", action="store_true", help="only put the last run into docs")
    options = parser.parse_args()
    if options.publish:
        page = ROOT / "docs/sentinels.md"
        run = json.loads((options.out / "sentinels.json").read_text())
        page.write_text(placed(page.read_text(), markdown(run), BEGIN))
        return 0
    began = time.perf_counter()
    run = {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.describe(),
        "costs": sentinel_costs.measured(),
        "holding": [holding(name, options.tokens) for name in ("qwen3", "deepseek_v3")],
        "false_positives": list(false_positives(options.answers, options.processes)),
    }
    run["seconds"] = time.perf_counter() - began
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sentinels.json").write_text(json.dumps(run, indent=1) + "\n")
    print(markdown(run))
    return 0


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
