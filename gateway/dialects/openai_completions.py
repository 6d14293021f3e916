"""OpenAI completions: plain text and token ids, one prompt or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import prompts, wire
from gateway.dialects.openai_common import ChoicesDialect
from gateway.types import OpaquePrompt, Prompt


class OpenAiCompletions(ChoicesDialect):
    """POST /v1/completions."""

    name = "openai_completions"
    operation = "text_completion"
    paths: Mapping[str, str] = {"/v1/completions": "completions"}
    subject = "prompt"

    def prompt(self, body: Mapping[str, Any], /) -> Prompt:
        """Text or ids, unless a part of it shows no length."""
        if body.get("prompt_embeds") is not None:
            return OpaquePrompt("prompt_embeds")
        add_special_tokens = wire.flag(body, "add_special_tokens")
        prompt = prompts.text_or_ids(body.get("prompt"), "prompt", add_special_tokens)
        if isinstance(body["prompt"], list):  # alone, an empty text is each engine's own matter
            prompts.refuse_empty(body["prompt"], "prompt")
        if body.get("suffix"):
            return OpaquePrompt("suffix")
        return prompts.truncation(body) or prompt
