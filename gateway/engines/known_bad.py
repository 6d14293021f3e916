"""Engine versions with published faults that leak one request into another.

``known_bad`` is what a worker's own facts suffice to say, and the deploy gate fails on it.
``advisories`` depend on settings that no endpoint shows; they are for people to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from gateway.types import WorkerFacts

Applies = Callable[[WorkerFacts], bool]


@dataclass(frozen=True, slots=True)
class Fault:
    """One published fault: whom it concerns, and what to do, with its public source."""

    applies: Applies
    text: str


def known_bad(facts: WorkerFacts) -> tuple[str, ...]:
    """Faults this worker has for certain, or cannot be cleared of."""
    return tuple(fault.text for fault in _CERTAIN if fault.applies(facts))


def advisories(facts: WorkerFacts) -> tuple[str, ...]:
    """Faults this worker has if it runs with a setting that it does not show."""
    return tuple(fault.text for fault in _CONDITIONAL if fault.applies(facts))


def _version(facts: WorkerFacts) -> Version | None:
    try:
        return Version(facts.version or "")
    except InvalidVersion:
        return None


def _older(engine: str, fixed_in: str) -> Applies:
    """The engine at a version before ``fixed_in``."""
    fixed = Version(fixed_in)

    def applies(facts: WorkerFacts) -> bool:
        version = _version(facts)
        return facts.engine == engine and version is not None and version < fixed

    return applies


def _disaggregated_before_the_fix(facts: WorkerFacts) -> bool:
    return facts.disaggregated and _older("sglang", "0.5.20")(facts)


def _disaggregated_of_unknown_version(facts: WorkerFacts) -> bool:
    return facts.engine == "sglang" and facts.disaggregated and _version(facts) is None


def _llama_build_after(build: int) -> Applies:
    """llama.cpp's ``b10241-abcdef``; build 0 is one made outside its repository."""

    def applies(facts: WorkerFacts) -> bool:
        found = re.match(r"b(\d{1,9})\b", facts.version or "")
        return facts.engine == "llama_cpp" and found is not None and int(found[1]) > build

    return applies


def _any_llama(facts: WorkerFacts) -> bool:
    return facts.engine == "llama_cpp"


_CERTAIN = (
    Fault(
        _disaggregated_before_the_fix,
        "SGLang before 0.5.20 in prefill/decode mode answers over-long prompts from other "
        "requests' KV (sgl-project/sglang #30233, fixed by #36988): update to 0.5.20 or later",
    ),
    Fault(
        _disaggregated_of_unknown_version,
        "SGLang in prefill/decode mode without a readable version: builds before 0.5.20 answer "
        "over-long prompts from other requests' KV (sgl-project/sglang #30233)",
    ),
    Fault(
        _older("vllm", "0.7.2"),
        "vLLM before 0.7.2 has predictable prefix-cache hashes, so a crafted prompt can collide "
        "with another's (CVE-2025-25183): update to 0.7.2 or later",
    ),
)

_CONDITIONAL = (
    Fault(
        _older("vllm", "0.30.0"),
        "vLLM before 0.30.0 with LMCache's multi-process connector: a malformed cache_salt stops "
        "the engine (CVE-2026-105756); never pass a client's own salt through",
    ),
    Fault(
        _llama_build_after(9747),
        "llama.cpp after b9747, seen in b10241: answers to another client's system prompt with "
        "several slots (ggml-org/llama.cpp #27422, unconfirmed, open)",
    ),
    Fault(
        _any_llama,
        "llama.cpp with its prompt cache in RAM (on by default) can restore another conversation "
        "into a slot (ggml-org/llama.cpp #27148, open): start it with --cache-ram 0",
    ),
)
