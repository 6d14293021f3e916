"""How long counting keeps the event loop from its work, and whether memory stays flat.

    python -m benchmarks.counting.stalls [--runs 3] [--megabytes 500] [TOKENIZER ...]

Stalls: two prompts of 4 MB that no cache has seen, counted at once as the gateway does, while a
task on uvloop asks to be woken every millisecond. Its longest delay is the stall. What holds the
interpreter does so each time, a busy machine does not: the least of the runs is judged, the worst
is shown. Memory: RSS as unseen text is counted; each tokenizer in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import string
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import uvloop

from gateway.edge.counting import LocalMeasurer, Threads
from gateway.edge.metrics import Metrics
from gateway.tokens.assets import AssetStore
from gateway.tokens.counters import EngineCounters
from gateway.tokens.recall import CountCache
from gateway.types import Counted, ParsedRequest, TextPrompt

CHARS = 4_000_000
GOAL_MS = 20.0
IDLE_SECONDS = 0.5
TOKENIZERS = ["poolgate-tiny", "qwen3", "deepseek_v3", "gptoss", "o200k_base"]
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


async def stall(one: LocalMeasurer, texts: list[str], run: int) -> tuple[float, float, int]:
    """The worst delay, the seconds both took, and the first one's tokens."""
    started = time.perf_counter()
    requests = [asked(text) for text in texts]
    async with asyncio.TaskGroup() as group:
        counts = [
            group.create_task(one.exact(request, f"tenant {run} {place}"))
            for place, request in enumerate(requests)
        ]
        worst = await worst_delay(lambda: all(task.done() for task in counts))
    length = counts[0].result()
    assert isinstance(length, Counted), length
    return worst, time.perf_counter() - started, length.total


async def stalls(name: str, times: int) -> None:
    one = measurer(name)
    end = time.perf_counter() + IDLE_SECONDS
    idle = await worst_delay(lambda: time.perf_counter() > end)
    print(f"{name}: two prompts of 4 MB at once (idle: {idle:.1f} ms)")
    for seed, (kind, make) in enumerate(ADVERSARIAL.items()):
        runs = []
        for run in range(times):
            texts = [make(random.Random(f"{seed} {run} {which}")) for which in range(2)]
            runs.append(await stall(one, texts, run))
        delays = sorted(worst for worst, _, _ in runs)
        _, took, tokens = runs[0]
        mark = "" if delays[0] < GOAL_MS else "  OVER THE GOAL"
        print(
            f"  {kind:<16} stall {delays[0]:6.1f} to {delays[-1]:6.1f} ms,"
            f" {took:5.2f} s, {tokens:9,} tokens{mark}"
        )


async def memory(name: str, megabytes: int) -> None:
    one, process, rng = measurer(name), psutil.Process(), random.Random(3)
    marks = []
    for done in range(0, megabytes + 1, 4):
        if done % max(4, megabytes // 5 // 4 * 4) == 0:
            marks.append(f"{done} MB: {process.memory_info().rss >> 20}")
        await one.exact(asked(words(rng, CHARS)), "tenant")
    print(f"{name}: RSS in MiB after unseen text of {', '.join(marks)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizers", nargs="*", default=TOKENIZERS)
    parser.add_argument("--megabytes", type=int, default=500, help="unseen text; 0: none")
    parser.add_argument("--runs", type=int, default=3, help="of each stall; 0: none")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.here:
        for name in options.tokenizers:
            again = [sys.executable, "-m", __spec__.name, "--here", name]
            amount = [f"--megabytes={options.megabytes}", f"--runs={options.runs}"]
            subprocess.run([*again, *amount], check=True)
        return
    [name] = options.tokenizers
    if options.runs:
        uvloop.run(stalls(name, options.runs))
    if options.megabytes:
        uvloop.run(memory(name, options.megabytes))


if __name__ == "__main__":
    main()
