"""Ollama: a loaded model's ``context_length`` less one, and it cuts longer prompts in silence.

By default old messages are dropped, then the middle of the prompt, until it fits; a request may
also ask for another window (``options.num_ctx``), which reloads the model.
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
from gateway.engines.reading import (
    at,
    below,
    body_of,
    count_at,
    fingerprint,
    items_at,
    text_at,
    trouble,
)
from gateway.engines.refusals import EXCEEDS_CONTEXT, Wording, stated_in
from gateway.types import WorkerFacts

LOADED = Probe("GET", "/api/ps")
OLLAMA_VERSION = Probe("GET", "/api/version")

WORDINGS = (
    Wording(re.compile(r"the prompt is longer than the context length")),
    Wording(re.compile(r"the input length exceeds the context length")),
    EXCEEDS_CONTEXT,  # with truncation off the runner's own refusal shows
)


class Ollama(WithoutOracle):
    """Ollama. From its source, not seen running."""

    __slots__ = ()

    name: str = "ollama"
    traits: Traits = Traits(folds_names=True)
    probes: tuple[Probe, ...] = (LOADED, OLLAMA_VERSION)

    def recognises(self, answers: Answers) -> bool:
        """``/api/ps`` lists models, be it none."""
        return isinstance(at(body_of(answers, LOADED), "models"), list)

    def read(self, worker: str, answers: Answers) -> tuple[WorkerFacts, ...] | Unreadable:
        """One entry a loaded model, since each has a window of its own."""
        loaded = items_at(body_of(answers, LOADED), "models")
        version = text_at(body_of(answers, OLLAMA_VERSION), "version")
        if not loaded:
            return Unreadable(f"Ollama: {trouble(answers, LOADED)}; no model is loaded")
        facts = tuple(self._facts(worker, model, version) for model in loaded)
        if any(fact.max_prompt_tokens is None for fact in facts):
            return Unreadable("Ollama: GET /api/ps: a loaded model shows no context_length")
        return facts

    def stated_limit(self, status: int, body: bytes) -> StatedLimit | None:
        """Only when it is told not to truncate, and mostly without a number."""
        return stated_in(status, body, WORDINGS)

    def _facts(self, worker: str, model: Any, version: str | None) -> WorkerFacts:
        window = count_at(model, "context_length")
        return WorkerFacts(
            worker=worker,
            engine=self.name,
            max_prompt_tokens=below(window, 1),
            context_tokens=window,
            truncates="truncate, on by default",
            models=_names(text_at(model, "name"), text_at(model, "model")),
            version=version,
            incarnation=fingerprint(version, text_at(model, "digest"), window),
        )


def _names(*names: str | None) -> tuple[str, ...]:
    """``llama3:latest`` answers to ``llama3`` too."""
    known = [name for name in names if name is not None]
    return tuple(dict.fromkeys([*known, *(name.removesuffix(":latest") for name in known)]))
