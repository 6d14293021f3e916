"""How long counting keeps the event loop from its work, and whether memory stays flat.

    python -m benchmarks.counting.stalls [--rounds 3] [--megabytes 500] [TOKENIZER ...]
    python -m benchmarks.counting.stalls --publish

Stalls: two prompts of 4 MB that no cache has seen, counted at once as the gateway does, while a
task on uvloop asks to be woken every millisecond. Its longest delay is the stall. What holds the
interpreter does so each time, a busy machine does not: the least of the rounds is judged, all are
recorded. Memory: RSS as unseen text is counted; each tokenizer in a process of its own. Writes
counting-stalls.json; ``--publish`` measures nothing and puts its tables into the docs.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.metadata
import json
import os
import random
import string
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.counting import report
from benchmarks.proxy import machine
from benchmarks.proxy.publish import placed
from benchmarks.proxy.rig import ROOT
from gateway.edge.counting import LocalMeasurer, Threads
from gateway.edge.metrics import Metrics
from gateway.tokens.assets import AssetStore
from gateway.tokens.counters import EngineCounters
from gateway.tokens.recall import CountCache
from gateway.types import Counted, ParsedRequest, TextPrompt

CHARS = 4_000_000
IDLE_SECONDS = 0.5
STEP = 4  # megabytes a prompt
MARKS = 5  # readings of memory after the first
TOKENIZERS = (
    "poolgate-tiny", "qwen3", "deepseek_v3", "deepseek_v4", "gptoss", "o200k_base", "cl100k_base",
)  # fmt: skip
PACKAGES = ("poolgate", "fastokens", "tokenizers", "tiktoken", "uvloop")
RESULT = ROOT / "benchmarks/results/counting-stalls.json"
PAGE = ROOT / "docs/performance-counting.md"
BEGIN = "<!-- stalls and memory of the last run: begin -->"
# Two in fifteen characters are spaces, the others lower-case letters.
WORDY = bytes((string.ascii_lowercase + "    ").encode()[byte % 30] for byte in range(256))


def words(rng: random.Random, size: int) -> str:
    return rng.randbytes(size).translate(WORDY).decode()


def chosen(alphabet: str) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choices(alphabet, k=CHARS))


ADVERSARIAL: dict[str, Callable[[random.Random], str]] = {
    "unseen words": lambda rng: words(rng, CHARS),
    "one letter": lambda rng: rng.choice(string.ascii_letters) * CHARS,
    "spaces": lambda _: " " * CHARS,
    "newlines": lambda _: "\n" * CHARS,
    "combining marks": lambda rng: "e" + chr(0x300 + rng.randrange(60)) * (CHARS // 2),
    "random letters": chosen(string.ascii_letters),
    "digits": chosen(string.digits),
    "base64": chosen(string.ascii_letters + string.digits + "+/"),
    "Chinese": lambda rng: "".join(map(chr, rng.choices(range(0x4E00, 0x9FFF), k=CHARS // 3))),
    "half a token": lambda _: "<|im_" * (CHARS // 5),
    "added tokens": lambda _: "<|im_end|>" * (CHARS // 10),
    "signs": lambda rng: rng.choice("<=-#") * CHARS,
}


def asked(text: str) -> ParsedRequest:
    prompt = TextPrompt((text,))
    return ParsedRequest(
        "openai_completions", "/v1/completions", b" " * len(text), {}, "m", False, prompt
    )


def measurer(name: str) -> LocalMeasurer:
    metrics = Metrics()
    counters = EngineCounters(AssetStore.open(), name)
    counters.load("openai")
    threads = Threads(ThreadPoolExecutor(1), ThreadPoolExecutor(1), 2**14, metrics)
    cache = CountCache(2**26, b"secret")
    return LocalMeasurer(counters, threads, cache, metrics, lambda: None, None)  # type: ignore[arg-type]


async def worst_delay(until: Callable[[], bool]) -> float:
    """Milliseconds by which the latest of the wake-ups was late."""
    worst, last = 0.0, time.perf_counter()
    while not until():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        worst, last = max(worst, now - last - 0.001), now
    return worst * 1e3


async def stall(one: LocalMeasurer, texts: list[str], which: int) -> dict[str, Any]:
    """The worst delay, the seconds both took, and the first one's tokens."""
    started = time.perf_counter()
    requests = [asked(text) for text in texts]
    async with asyncio.TaskGroup() as group:
        counts = [
            group.create_task(one.exact(request, f"tenant {which} {place}"))
            for place, request in enumerate(requests)
        ]
        worst = await worst_delay(lambda: all(task.done() for task in counts))
    length = counts[0].result()
    assert isinstance(length, Counted), length
    took = time.perf_counter() - started
    return {"stall_ms": worst, "seconds": took, "tokens": length.total}


async def stalls(name: str, rounds: int) -> dict[str, Any]:
    """Every kind of text, ``rounds`` times; and the worst delay with nothing to count."""
    one = measurer(name)
    end = time.perf_counter() + IDLE_SECONDS
    idle = await worst_delay(lambda: time.perf_counter() > end)
    kinds = {}
    for seed, (kind, make) in enumerate(ADVERSARIAL.items()):
        kinds[kind] = []
        for which in range(rounds):
            texts = [make(random.Random(f"{seed} {which} {place}")) for place in range(2)]
            kinds[kind].append(await stall(one, texts, which))
        say(f"{name}, {kind}: " + ", ".join(f"{row['stall_ms']:.1f} ms" for row in kinds[kind]))
    return {"idle_ms": idle, "kinds": kinds}


async def memory(name: str, megabytes: int) -> dict[int, int]:
    """RSS in MiB by megabytes counted."""
    one, process, rng = measurer(name), psutil.Process(), random.Random(3)
    every = max(STEP, megabytes // MARKS // STEP * STEP)
    marks = {}
    for done in range(0, megabytes + 1, STEP):
        if done % every == 0:
            marks[done] = process.memory_info().rss >> 20
        await one.exact(asked(words(rng, CHARS)), "tenant")
    say(f"{name}: MiB by MB counted: {marks}")
    return marks


def in_process(name: str, part: str, amount: int) -> Any:
    """One part of one tokenizer, in a process of its own."""
    again = [sys.executable, "-m", __spec__.name, "--part", part, "--amount", str(amount), name]
    done = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return json.loads(done.stdout)


def measure(names: list[str], rounds: int, megabytes: int) -> dict[str, Any]:
    run: dict[str, Any] = {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine.describe(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "stalls": {},
        "memory": {},
    }
    for name in names:
        if rounds:
            load = os.getloadavg()[0]
            run["stalls"][name] = {"load": load, **in_process(name, "stalls", rounds)}
        if megabytes:
            run["memory"][name] = in_process(name, "memory", megabytes)
    return run


def publish(run: Path, page: Path) -> None:
    """The run's tables between the page's markers."""
    tables = report.stalls_and_memory(json.loads(run.read_text()))
    page.write_text(placed(page.read_text(), tables, BEGIN))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizers", nargs="*", default=TOKENIZERS)
    parser.add_argument("--megabytes", type=int, default=500, help="unseen text; 0: none")
    parser.add_argument("--rounds", type=int, default=3, help="of each stall; 0: none")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument(
        "--publish", action="store_true", help="measure nothing: put the last run into the docs"
    )
    parser.add_argument("--part", choices=("stalls", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--amount", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.publish:
        publish(options.out, PAGE)
    elif options.part:
        [name] = options.tokenizers
        part = {"stalls": stalls, "memory": memory}[options.part]
        print(json.dumps(uvloop.run(part(name, options.amount))))
    else:
        run = measure(options.tokenizers, options.rounds, options.megabytes)
        options.out.write_text(json.dumps(run, indent=1) + "\n")
        print(report.stalls_and_memory(run))


if __name__ == "__main__":
    main()
