"""What fingerprints cost: time for prompts and answers, longest steps, memory."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.integrity import local_texts
from benchmarks.integrity.detection import NOTHING, POOL_TOKENS, SCHEME, STRANGER, Detector
from gateway.core.fingerprint.atoms import AtomMatcher, atoms
from gateway.core.fingerprint.index import Index, Kind
from gateway.core.fingerprint.matcher import Matcher
from gateway.core.fingerprint.shingles import entries_for, sample
from gateway.dialects.answer_text import AnswerText
from gateway.tokens.assets import AssetStore
from gateway.tokens.libraries import load_encoder

ROUNDS = 9
KEY = b"k" * 32


def seconds(work: Callable[[], object]) -> float:
    """Processor time, the median of some runs: other work on the machine is not counted."""
    taken = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return statistics.median(taken)


def costs(detector: Detector, text: str) -> dict[str, Any]:
    """In microseconds a thousand tokens, by the qwen3 tokenizer; ``text`` is a long prompt."""
    encoder = load_encoder(AssetStore.open().resolve("qwen3"))
    thousands = encoder.count(text) / 1000
    hashes = sample(SCHEME, [text])
    steps: list[float] = []

    def write() -> None:
        index, before = Index(entries_for(4 * POOL_TOKENS)), time.thread_time()
        for _ in index.add(0, Kind.PROMPT, hashes):
            now = time.thread_time()
            steps.append(now - before)
            before = now

    answer = local_texts.filler(4_000, random.Random(1))
    answer_thousands = encoder.count(answer) / 1000
    pieces = [answer[at : at + 4] for at in range(0, len(answer), 4)]
    events = [_event(piece) for piece in pieces]
    return {
        "prompt_tokens": round(thousands * 1000),
        "windows_us": seconds(lambda: sample(SCHEME, [text])) / thousands * 1e6,
        "atoms_us": seconds(lambda: atoms(KEY, [text])) / thousands * 1e6,
        "write_us": seconds(write) / thousands * 1e6,
        "longest_write_ms": sorted(steps)[-max(1, len(steps) // 100)] * 1e3,
        "hash_whole_prompt_ms": seconds(lambda: sample(SCHEME, [text])) * 1e3,
        "events_us": seconds(lambda: _read(events)) / answer_thousands * 1e6,
        "stream_us": seconds(lambda: _match(detector, pieces)) / answer_thousands * 1e6,
        "stream_atoms_us": seconds(lambda: _atoms(detector, pieces)) / answer_thousands * 1e6,
        "whole_us": seconds(lambda: _match(detector, [answer])) / answer_thousands * 1e6,
        "memory_mb_per_million": detector.index.nbytes / (4 * POOL_TOKENS),
        "memory_mb": detector.index.nbytes / 1e6,
        "remembered_tokens": 4 * POOL_TOKENS,
    }


def _event(piece: str) -> bytes:
    delta = {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0}]}
    delta["choices"][0] |= {"delta": {"content": piece}, "finish_reason": None}  # type: ignore[index]
    return b"data: " + json.dumps(delta).encode() + b"\n\n"


def _read(events: list[bytes]) -> None:
    text = AnswerText()
    for each in events:
        text.of_events(each)


def _match(detector: Detector, pieces: list[str]) -> None:
    matcher = Matcher(SCHEME, detector.index, STRANGER)
    for piece in pieces:
        matcher.feed("content", piece)
    if matcher.unsettled:
        matcher.settle(NOTHING)


def _atoms(detector: Detector, pieces: list[str]) -> None:
    matcher = AtomMatcher(KEY, detector.index, STRANGER)
    for piece in pieces:
        matcher.feed("content", piece)
    matcher.end()
