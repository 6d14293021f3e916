"""TensorRT-LLM's ``trtllm-serve``: it shows the pool, but not ``max_seq_len``.

So the limit is the pool less one block for the answer; a shorter ``max_seq_len`` makes the engine
refuse by itself. The pool stands in ``/server_info`` (recent builds), on ``/prometheus/metrics``
(with ``return_perf_metrics``) or in the iteration statistics of ``/metrics``, a JSON list that
is empty while the engine idles.
"""

from __future__ import annotations

import re
from typing import Any

from gateway.engines.asking import WithoutOracle
from gateway.engines.base import (
    Answers,
    Probe,
    StatedLimit,
    Traits,
    Unreadable,
)
from gateway.engines.prometheus_text import series_of
from gateway.engines.reading import (
    BY_HAND,
    METRICS,
    MODELS,
    MOST_TOKENS,
    SERVER_INFO,
    VERSION,
    at,
    body_of,
    count_at,
    fingerprint,
    items_at,
    model_cards,
    smallest,
    text_at,
)
from gateway.engines.refusals import Wording, stated_in
from gateway.types import WorkerFacts

PROMETHEUS = Probe("GET", "/prometheus/metrics")

WORDINGS = (
    Wording(
        re.compile(
            r"The sum of prompt length \([\d.]+\), query length \([\d.]+\) should not exceed "
            r"max_num_tokens \((?P<limit>\d+)\)"
        ),
        refused_at_limit=False,
    ),
    Wording(re.compile(r"`default_max_tokens` \(-?\d+\) must be greater than 0")),
)


class TensorRtLlm(WithoutOracle):
    """trtllm-serve. From its source, not seen running."""

    __slots__ = ()

    name: str = "tensorrt_llm"
    traits: Traits = Traits(
        salt_fields={"openai_chat": "cache_salt", "openai_completions": "cache_salt"}
    )
    probes: tuple[Probe, ...] = (VERSION, MODELS, SERVER_INFO, PROMETHEUS, METRICS)

    def recognises(self, answers: Answers) -> bool:
        """Its name on the model cards, or ``/metrics`` that is a JSON list."""
        statistics = isinstance(body_of(answers, METRICS), list)
        versioned = text_at(body_of(answers, VERSION), "version") is not None
        return "tensorrt_llm" in model_cards(answers).owners or (versioned and statistics)

    def read(self, worker: str, answers: Answers) -> tuple[WorkerFacts, ...] | Unreadable:
        """The first source that shows the blocks and their size."""
        found = _blocks(answers)
        if found is None:
            return Unreadable(f"TensorRT-LLM shows no KV blocks (idle, or not enabled); {BY_HAND}")
        blocks, size = found
        if blocks < 2:
            return Unreadable("TensorRT-LLM: a pool of one block holds no prompt and answer")
        version = text_at(body_of(answers, VERSION), "version")
        return (
            WorkerFacts(
                worker=worker,
                engine=self.name,
                max_prompt_tokens=(blocks - 1) * size,
                pool_tokens=blocks * size,
                models=model_cards(answers).names,
                version=version,
                incarnation=fingerprint(version, blocks, size),
                notes=("max_seq_len is not shown: the engine may refuse shorter prompts",),
            ),
        )

    def stated_limit(self, status: int, body: bytes) -> StatedLimit | None:
        """400, flat or with a bare text as the error."""
        return stated_in(status, body, WORDINGS)


def _blocks(answers: Answers) -> tuple[int, int] | None:
    """Number of KV blocks and tokens in each."""
    info = _pair(body_of(answers, SERVER_INFO))
    if info is not None:
        return info
    gauges = [_gauge(answers, name) for name in ("max_blocks", "tokens_per_block")]
    if gauges[0] and gauges[1]:
        return gauges[0], gauges[1]
    iterations = items_at(body_of(answers, METRICS))
    pairs = [_pair(at(iteration, "kvCacheStats")) for iteration in iterations]
    return min((pair for pair in pairs if pair), default=None)


def _pair(stats: Any) -> tuple[int, int] | None:
    blocks, size = count_at(stats, "maxNumBlocks"), count_at(stats, "tokensPerBlock")
    return (blocks, size) if blocks and size else None


def _gauge(answers: Answers, name: str) -> int | None:
    series = series_of(answers, PROMETHEUS, f"trtllm_kv_cache_{name}")
    return smallest(*(int(one.value) for one in series if 1 <= one.value <= MOST_TOKENS))
