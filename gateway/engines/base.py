"""What every engine adapter knows: what to ask a worker, and how to read what it says.

Adapters are pure. Discovery (``gateway.edge.discovery``) does the asking, on every worker, and
hands the answers back by probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import msgspec

from gateway.types import ChatPrompt, TextPrompt, WorkerFacts


@dataclass(frozen=True, slots=True)
class Probe:
    """One question to a worker: method, path and, for a POST, its JSON body.

    The body takes part in equality but not in the hash, so that a probe with one can be a key.
    """

    method: str
    path: str
    body: Any = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """One worker's answer to a probe. ``status`` 0: no answer (``body`` says why)."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The decoded body, or None where it is not JSON or the status is not 200."""
        if self.status != 200:
            return None
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None


Answers = Mapping[Probe, Answer]


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """A worker a router told of: where it is and what it does."""

    url: str
    role: str = "regular"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The engine answered, but shows no limit that can be trusted."""

    reason: str


@dataclass(frozen=True, slots=True)
class StatedLimit:
    """A limit the engine named in a refusal: the longest prompt it would have taken."""

    max_prompt_tokens: int | None


@dataclass(frozen=True, slots=True)
class OracleCall:
    """A question to the engine's own tokeniser and how to read the count from its answer.

    ``count_field`` is a key whose value is an integer, or a list whose length is the count; empty
    where the whole answer is that list.
    """

    probe: Probe
    count_field: str

    def count(self, answer: Answer) -> int | None:
        """The count in ``answer``; None where it holds none (an error, another shape)."""
        body = answer.json()
        if self.count_field:
            body = body.get(self.count_field) if isinstance(body, dict) else None
        if isinstance(body, list):
            return len(body)
        is_count = isinstance(body, int) and not isinstance(body, bool) and body >= 0
        return body if is_count else None


@dataclass(frozen=True, slots=True)
class Traits:
    """What is peculiar to an engine's accounting and fields.

    ``usage_first_only``: usage covers only the first prompt of a batch and the first choice.
    ``closes_after_stream``: it hangs up after a streamed answer without saying so beforehand.
    ``salt_fields``: dialect -> the request field that salts the prefix cache, where it has one.
    ``salt_max_chars``: the longest salt it takes.
    ``id_fields``: dialect -> the request field that gives the request its id, and so the answer.
    ``folds_names``: it takes ``Messages`` for ``messages``, as parsers of Go do.
    """

    usage_first_only: bool = False
    closes_after_stream: bool = False
    salt_fields: Mapping[str, str] = field(default_factory=dict)
    salt_max_chars: int = 64
    id_fields: Mapping[str, str] = field(default_factory=dict)
    folds_names: bool = False


@runtime_checkable
class Engine(Protocol):
    """One engine. Stateless; module-level instances are fine."""

    name: str
    traits: Traits
    probes: tuple[Probe, ...]

    def recognises(self, answers: Answers) -> bool:
        """Whether these answers (to this adapter's probes) come from this engine."""

    def read(self, worker: str, answers: Answers) -> tuple[WorkerFacts, ...] | Unreadable:
        """Facts of the worker, one entry per DP rank where ranks differ.

        ``worker`` is the label (URL) to put into the facts.
        """

    def stated_limit(self, status: int, body: bytes) -> StatedLimit | None:
        """The engine's own over-length refusal recognised in an answer, else None."""

    def oracle(self, prompt: ChatPrompt | TextPrompt, model: str) -> tuple[OracleCall, ...] | None:
        """How to ask the engine to count this prompt (one call an item); None: it cannot."""


@runtime_checkable
class Router(Protocol):
    """Something in front of engines that can tell where they are."""

    name: str
    probes: tuple[Probe, ...]

    def recognises(self, answers: Answers) -> bool:
        """Whether these answers come from this router."""

    def workers(self, answers: Answers) -> tuple[WorkerRef, ...] | Unreadable:
        """The workers behind it. Facts of each are then asked of the worker itself."""
