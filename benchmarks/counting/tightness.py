"""How far bounds lie above the counts, what they cost, and how seldom a count is needed then."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import Any

from benchmarks.counting import texts
from gateway.tokens.assets import AssetStore
from gateway.tokens.encoder import Encoder
from gateway.tokens.libraries import load_encoder

TOKENIZERS = ("qwen3", "deepseek_v3", "gptoss")
SIZE = 1_000_000
LIMITS = (131_072, 681_280, 1_048_576)

# Synthetic traffic of log-normal lengths, not measured anywhere: median tokens, and the spread
# that gives the shares over 131,072 tokens of the project's earlier table.
TRAFFIC = {
    "chat": (1_200, 1.33),
    "RAG, agents": (9_000, 1.10),
    "coding agent": (40_000, 1.00),
}
BYTES_A_TOKEN = [2.9 + step * 0.1 for step in range(18)]


@dataclass(frozen=True, slots=True)
class Row:
    """One tokenizer on one text: bounds as multiples of the count."""

    tokenizer: str
    text: str
    bytes_a_token: float
    bytes_bound: float
    bound: float
    bound_a_byte: float
    ms_a_megabyte: float


def rows(size: int = SIZE) -> list[Row]:
    """Every tokenizer on every kind of text."""
    dice = random.Random(7)
    samples = {kind: make(size, dice) for kind, make in texts.KINDS.items()}
    return [
        _row(name, encoder, kind, text)
        for name in TOKENIZERS
        for encoder in [load_encoder(AssetStore.open().resolve(name))]
        for kind, text in samples.items()
    ]


def _row(name: str, encoder: Encoder, kind: str, text: str) -> Row:
    tokens, size = encoder.count(text), len(text.encode())
    bound = encoder.upper_bound(text)
    if bound is None or bound < tokens:
        raise AssertionError(f"{name}, {kind}: the bound {bound} is below the count {tokens}")
    seconds = _median_seconds(lambda: encoder.upper_bound(text))
    return Row(
        tokenizer=name,
        text=kind,
        bytes_a_token=size / tokens,
        bytes_bound=size / tokens,
        bound=bound / tokens,
        bound_a_byte=bound / size,
        ms_a_megabyte=seconds * 1e9 / size,
    )


def _median_seconds(call: Callable[[], object], times: int = 7) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def shares(measured: Sequence[Row]) -> list[dict[str, Any]]:
    """Shares of synthetic requests whose bound is over the limit, so that they must be counted.

    ``new`` takes the mean of the bounds a byte measured on prose and code with Qwen3.
    """
    ratio = statistics.mean(
        row.bound_a_byte
        for row in measured
        if row.tokenizer == "qwen3" and row.text in ("prose", "code")
    )
    return [
        {
            "traffic": name,
            "limit": limit,
            "over": _share(name, limit, 1.0),
            "bytes": statistics.mean(_share(name, limit, 1 / b) for b in BYTES_A_TOKEN),
            "new": statistics.mean(
                _share(name, limit, 1 / max(1, b * ratio)) for b in BYTES_A_TOKEN
            ),
        }
        for name in TRAFFIC
        for limit in LIMITS
    ]


def _share(traffic: str, limit: int, part: float) -> float:
    """Requests of more tokens than this part of the limit."""
    median, spread = TRAFFIC[traffic]
    return 1 - statistics.NormalDist(log(median), spread).cdf(log(limit * part))


def as_json() -> dict[str, Any]:
    measured = rows()
    return {"rows": [asdict(row) for row in measured], "shares": shares(measured)}
