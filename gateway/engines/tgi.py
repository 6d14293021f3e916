"""Hugging Face text-generation-inference: ``max_input_tokens`` of ``/info``, itself allowed.

A request is refused when prompt and new tokens exceed ``max_total_tokens``, or the prompt alone
``max_input_tokens``; both are sized at warm-up to fit the pool.
"""

from __future__ import annotations

import re

from gateway.engines.asking import ask, ask_each, shows_media
from gateway.engines.base import (
    Answers,
    OracleCall,
    Probe,
    StatedLimit,
    Traits,
    Unreadable,
)
from gateway.engines.prometheus_text import series_of
from gateway.engines.reading import (
    METRICS,
    MOST_TOKENS,
    below,
    body_of,
    count_at,
    fingerprint,
    smallest,
    text_at,
    trouble,
)
from gateway.engines.refusals import Wording, stated_in
from gateway.types import ChatPrompt, TextPrompt, WorkerFacts

INFO = Probe("GET", "/info")
POOL_METRIC = "tgi_batch_max_total_tokens"

WORDINGS = (
    Wording(
        re.compile(r"Input validation error: `inputs` must have less than (?P<limit>\d+) tokens"),
        refused_at_limit=False,
    ),
    Wording(
        re.compile(
            r"Input validation error: `inputs` tokens \+ `max_new_tokens` must be <= "
            r"(?P<limit>\d+)\. Given: (?P<given>\d+) `inputs` tokens"
        )
    ),
)


class Tgi:
    """text-generation-inference 1.x to 3.x. From its source, not seen running."""

    __slots__ = ()

    name: str = "tgi"
    traits: Traits = Traits()
    probes: tuple[Probe, ...] = (INFO, METRICS)

    def recognises(self, answers: Answers) -> bool:
        """``/info`` names its router, or (1.x) has TGI's own pair of limits."""
        info = body_of(answers, INFO)
        if text_at(info, "router") is not None:
            return text_at(info, "router") == "text-generation-router"
        return isinstance(info, dict) and {"max_total_tokens", "model_id"} <= info.keys()

    def read(self, worker: str, answers: Answers) -> tuple[WorkerFacts, ...] | Unreadable:
        """The smallest of the input limit, the total less one, and the pool."""
        info = body_of(answers, INFO)
        total = count_at(info, "max_total_tokens")
        stated = count_at(info, "max_input_tokens") or count_at(info, "max_input_length")
        pool = count_at(info, "max_batch_total_tokens") or _pool(answers)
        limit = smallest(stated, below(total, 1), pool)
        if stated is None or limit is None:
            return Unreadable(f"TGI: {trouble(answers, INFO)} (max_input_tokens)")
        version, model = text_at(info, "version"), text_at(info, "model_id")
        return (
            WorkerFacts(
                worker=worker,
                engine=self.name,
                max_prompt_tokens=limit,
                pool_tokens=pool,
                context_tokens=total,
                models=(model,) if model else (),
                version=version,
                incarnation=fingerprint(version, text_at(info, "sha"), model, limit, pool, total),
            ),
        )

    def stated_limit(self, status: int, body: bytes) -> StatedLimit | None:
        """422, or an event in an open stream."""
        return stated_in(status, body, WORDINGS)

    def oracle(self, prompt: ChatPrompt | TextPrompt, model: str) -> tuple[OracleCall, ...] | None:
        """``/tokenize`` answers with the bare list of tokens, ``/chat_tokenize`` with an object."""
        if isinstance(prompt, TextPrompt):
            if prompt.add_special_tokens is False:
                return None  # it always adds them
            return ask_each(prompt, "/tokenize", "inputs", "")
        if prompt.dialect != "openai_chat" or shows_media(prompt.body.get("messages")):
            return None
        whole = {name: prompt.body[name] for name in prompt.body if name != "stream"}
        return (ask("/chat_tokenize", {**whole, "model": model}, "tokenize_response"),)


def _pool(answers: Answers) -> int | None:
    gauges = [series.value for series in series_of(answers, METRICS, POOL_METRIC)]
    return smallest(*(int(value) for value in gauges if 1 <= value <= MOST_TOKENS))
