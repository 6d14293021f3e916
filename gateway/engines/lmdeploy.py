"""LMDeploy: only its prefill/decode builds show the pool (``/distserve/engine_info``).

The PyTorch engine takes at most ``(num_gpu_blocks - reserved) * block_size - block_size`` tokens
a session, with one block reserved, prompt and answer together; ``session_len``, which is not
shown, can lower it, and the server then refuses by itself.
"""

from __future__ import annotations

import re
from typing import Any

from gateway.engines.asking import ask_anthropic, ask_each, shows_media
from gateway.engines.base import (
    Answer,
    Answers,
    OracleCall,
    Probe,
    StatedLimit,
    Traits,
    Unreadable,
)
from gateway.engines.reading import (
    BY_HAND,
    MODELS,
    at,
    body_of,
    count_at,
    fingerprint,
    model_cards,
    scalar_at,
    trouble,
)
from gateway.engines.refusals import Wording, stated_in
from gateway.types import ChatPrompt, TextPrompt, WorkerFacts

ENGINE_INFO = Probe("GET", "/distserve/engine_info")
UNUSABLE_BLOCKS = 2  # one reserved for padding, one the session length leaves out

WORDINGS = (Wording(re.compile(r"The request exceeds the model context length")),)


class LmDeploy:
    """LMDeploy's api_server. From its source, not seen running."""

    __slots__ = ()

    name: str = "lmdeploy"
    traits: Traits = Traits()
    probes: tuple[Probe, ...] = (ENGINE_INFO, MODELS)

    def recognises(self, answers: Answers) -> bool:
        """Its name on the model cards, or the engine info."""
        blocks = at(_engine_info(answers), "num_gpu_blocks")
        return blocks is not None or "lmdeploy" in model_cards(answers).owners

    def read(self, worker: str, answers: Answers) -> tuple[WorkerFacts, ...] | Unreadable:
        """From the engine info alone; without it the limit is the operator's to set."""
        info = _engine_info(answers)
        blocks, size = count_at(info, "num_gpu_blocks"), count_at(info, "block_size")
        if blocks is None or size is None:
            return Unreadable(f"LMDeploy: {trouble(answers, ENGINE_INFO)}; {BY_HAND}")
        limit = (blocks - UNUSABLE_BLOCKS) * size - 1
        if limit < 1:
            return Unreadable("LMDeploy: its pool is too small for any prompt")
        return (
            WorkerFacts(
                worker=worker,
                engine=self.name,
                max_prompt_tokens=limit,
                pool_tokens=blocks * size,
                models=model_cards(answers).names,
                incarnation=fingerprint(blocks, size, scalar_at(info, "dp_rank")),
                notes=("session_len is not shown: the engine may refuse shorter prompts",),
            ),
        )

    def stated_limit(self, status: int, body: bytes) -> StatedLimit | None:
        """400 without a number."""
        return stated_in(status, body, WORDINGS)

    def oracle(self, prompt: ChatPrompt | TextPrompt, model: str) -> tuple[OracleCall, ...] | None:
        """``/v1/encode`` takes texts; of the chat dialects only Anthropic's has an endpoint."""
        if isinstance(prompt, TextPrompt):
            bos = prompt.add_special_tokens is not False
            return ask_each(
                prompt, "/v1/encode", "input", "length", do_preprocess=False, add_bos=bos
            )
        if prompt.dialect != "anthropic_messages" or shows_media(prompt.body.get("messages")):
            return None
        return ask_anthropic(prompt.body, model)


def _engine_info(answers: Answers) -> Any:
    """The endpoint returns a JSON text that holds JSON."""
    outer = body_of(answers, ENGINE_INFO)
    return Answer(200, outer.encode()).json() if isinstance(outer, str) else outer
