"""One counter in a process of its own, so that its first call knows nothing: see ``run``."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiktoken
import tiktoken.load
import tokenizers

from benchmarks.proxy.rig import ROOT
from gateway.tokens.assets import AssetStore
from gateway.tokens.counters import EngineCounters
from gateway.types import TextPrompt

POOLGATE, REFERENCE = "poolgate", "reference"
Count = Callable[[str], str]


def run(counter: str, tokenizer: str, text: Path, limit: int, warm: int) -> dict[str, Any]:
    """Seconds of the first call and of the median later one on the same text, and its answer."""
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.counting.once", counter, tokenizer, str(text),
            "--limit", str(limit), "--warm", str(warm),
        ],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def poolgate(tokenizer: str, limit: int) -> Count:
    """What admission asks: enough to decide against the limit."""
    counter = EngineCounters(AssetStore.open(), tokenizer).load("vllm")
    return lambda text: str(counter.measure(TextPrompt((text,), False), limit))


def reference(tokenizer: str) -> Count:
    """The library alone, counting the whole text as fast as it can."""
    files = AssetStore.open().resolve(tokenizer)
    if files.tiktoken is not None:
        path = files.folder / f"{tokenizer}.tiktoken"
        encoding = tiktoken.Encoding(
            tokenizer,
            pat_str=files.tiktoken.pattern,
            mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(path)),
            special_tokens=dict(files.tiktoken.special_tokens),
        )
        return lambda text: str(len(encoding.encode_to_numpy(text, allowed_special="all")))
    whole = tokenizers.Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    return lambda text: str(len(whole.encode_batch_fast([text], add_special_tokens=False)[0]))


def timed(count: Count, text: str) -> tuple[float, str]:
    started = time.perf_counter()
    answer = count(text)
    return time.perf_counter() - started, answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counter", choices=[POOLGATE, REFERENCE])
    parser.add_argument("tokenizer")
    parser.add_argument("text", type=Path)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--warm", type=int, default=3)
    options = parser.parse_args()
    text = options.text.read_text("utf-8")
    if options.counter == POOLGATE:
        count = poolgate(options.tokenizer, options.limit)
    else:
        count = reference(options.tokenizer)
    count("a first short call")
    cold, answer = timed(count, text)
    warm = [timed(count, text)[0] for _ in range(options.warm)]
    print(json.dumps({"cold_s": cold, "warm_s": statistics.median(warm), "answer": answer}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
