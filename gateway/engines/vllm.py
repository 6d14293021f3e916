"""vLLM: the limit is ``max_model_len - 1``.

vLLM refuses to start where its pool does not hold one request of ``max_model_len``, and refuses a
prompt of that many tokens since nothing is left to generate. The pool is a cross-check:
``kv_cache_size_tokens`` is one DP engine's, while ``num_gpu_blocks * block_size`` is summed over
engines and wrong for hybrid models, so it only makes a note.
"""

from __future__ import annotations

import re

from gateway.engines.asking import (
    ask,
    ask_anthropic,
    ask_each,
    constrains_format,
    picked,
    sets_any,
)
from gateway.engines.base import (
    Answers,
    OracleCall,
    Probe,
    StatedLimit,
    Traits,
    Unreadable,
)
from gateway.engines.prometheus_text import Series, series_of
from gateway.engines.reading import (
    METRICS,
    MODELS,
    VERSION,
    below,
    body_of,
    digits,
    fingerprint,
    model_cards,
    smallest,
    text_at,
    trouble,
)
from gateway.engines.refusals import Wording, stated_in
from gateway.types import ChatPrompt, TextPrompt, WorkerFacts

CACHE_INFO = "vllm:cache_config_info"
PROCESS_START = "process_start_time_seconds"

WORDINGS = (
    Wording(
        re.compile(
            r"This model's maximum context length is (?P<limit>\d+) tokens\. However, your "
            r"(prompt contains|messages resulted in|request has \d+ input tokens)"
        )
    ),
    Wording(
        re.compile(
            r"This model's maximum context length is (?P<limit>\d+) tokens\. However, you "
            r"requested \d+ tokens \((?P<given>\d+) in the (messages|prompt)"
        )
    ),
    Wording(
        re.compile(
            r"The \w+ prompt \(length \d+\) is longer than the maximum model length of "
            r"(?P<limit>\d+)"
        )
    ),
    Wording(re.compile(r"The engine prompt length \d+ exceeds the max_model_len (?P<limit>\d+)")),
    # A prompt of exactly max_model_len, whatever maximum was asked for. It names no limit, and a
    # client that asks for 0 tokens is told the same: cause to look again, no more.
    Wording(re.compile(r"max_tokens must be at least 1, got 0\.")),
)

TOKENIZE_FIELDS = (
    "messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs",
)  # fmt: skip
# Reach a chat's prompt, but only the render endpoint takes them.
RENDER_FIELDS = ("reasoning_effort", "documents", "tool_choice")
NOT_RENDERED = frozenset({"stream", "stream_options", "cache_salt"})


class Vllm:
    """vLLM's OpenAI server (V1 engine). Seen running: 0.32.0."""

    __slots__ = ()

    name: str = "vllm"
    traits: Traits = Traits(
        salt_fields={
            "openai_chat": "cache_salt",
            "openai_completions": "cache_salt",
            "openai_responses": "cache_salt",
            "openai_embeddings": "cache_salt",
            "anthropic_messages": "cache_salt",
        },
        salt_max_chars=128,
        id_fields={"openai_responses": "request_id"},  # elsewhere the header X-Request-Id
    )
    probes: tuple[Probe, ...] = (VERSION, MODELS, METRICS)

    def recognises(self, answers: Answers) -> bool:
        """``/version``, and a mark of vLLM's own on the models or the metrics (open by default)."""
        if text_at(body_of(answers, VERSION), "version") is None:
            return False
        return "vllm" in model_cards(answers).owners or bool(
            series_of(answers, METRICS, CACHE_INFO)
        )

    def read(self, worker: str, answers: Answers) -> tuple[WorkerFacts, ...] | Unreadable:
        """One entry for all DP engines: they share ``max_model_len``, the smallest pool counts."""
        cards = model_cards(answers)
        engines = series_of(answers, METRICS, CACHE_INFO)
        pool = smallest(*(digits(engine.labels.get("kv_cache_size_tokens")) for engine in engines))
        limit = below(smallest(cards.max_model_len, pool), 1)
        if cards.max_model_len is None or limit is None:
            return Unreadable(f"vLLM: {trouble(answers, MODELS)} (max_model_len)")
        version = text_at(body_of(answers, VERSION), "version")
        started = [series.value for series in series_of(answers, METRICS, PROCESS_START)]
        return (
            WorkerFacts(
                worker=worker,
                engine=self.name,
                max_prompt_tokens=limit,
                pool_tokens=pool,
                context_tokens=cards.max_model_len,
                models=cards.names,
                version=version,
                incarnation=fingerprint(version, cards.max_model_len, pool, *started),
                notes=_notes(engines, pool, cards.max_model_len),
            ),
        )

    def stated_limit(self, status: int, body: bytes) -> StatedLimit | None:
        """Always 400, before a stream opens. The length it names is only a lower bound."""
        return stated_in(status, body, WORDINGS)

    def oracle(self, prompt: ChatPrompt | TextPrompt, model: str) -> tuple[OracleCall, ...] | None:
        """``/tokenize``; for a chat with fields that one lacks, the render endpoint.

        Rendering needs ``--enable-scale-out``; without it the answer is 403 and holds no count.
        """
        if isinstance(prompt, TextPrompt):
            special = prompt.add_special_tokens is not False
            return ask_each(
                prompt, "/tokenize", "prompt", "count", model=model, add_special_tokens=special
            )
        body = prompt.body
        if prompt.dialect == "anthropic_messages":
            return ask_anthropic(body, model, "chat_template_kwargs")
        if prompt.dialect != "openai_chat":
            return None
        if sets_any(body, RENDER_FIELDS) or constrains_format(body):
            whole = {name: body[name] for name in body if name not in NOT_RENDERED}
            return (ask("/v1/chat/completions/render", {**whole, "model": model}, "token_ids"),)
        return (ask("/tokenize", {"model": model, **picked(body, TOKENIZE_FIELDS)}, "count"),)


def _notes(engines: tuple[Series, ...], pool: int | None, context: int) -> tuple[str, ...]:
    if pool is not None:
        short = pool < context
        return (f"max_model_len is {context}, but the pool holds {pool} tokens",) if short else ()
    for engine in engines:
        blocks = digits(engine.labels.get("num_gpu_blocks"))
        size = digits(engine.labels.get("block_size"))
        if blocks and size:
            return (f"{blocks} blocks of {size} tokens over all DP engines; no pool per engine",)
    return ("no pool size on /metrics",)
