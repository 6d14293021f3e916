"""OpenAI chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import marking, prompts, wire
from gateway.dialects.openai_common import ChoicesDialect
from gateway.types import ChatPrompt, OpaquePrompt, ParsedRequest, Prompt


class OpenAiChat(ChoicesDialect):
    """POST /v1/chat/completions."""

    name = "openai_chat"
    operation = "chat"
    paths: Mapping[str, str] = {"/v1/chat/completions": "chat"}
    subject = "messages"

    def prompt(self, body: Mapping[str, Any], /) -> Prompt:
        """The conversation. Images are left to the renderer, which knows the engine."""
        wire.objects(body, "messages")
        if body.get("input_ids") is not None:  # SGLang runs these and never looks at the messages
            return OpaquePrompt("input_ids")
        return prompts.truncation(body) or ChatPrompt(self.name, body)

    def marked(self, request: ParsedRequest, text: str, /) -> ParsedRequest | None:
        """In the first message, if it is the system's or the developer's, else in a new one."""
        return marking.end_system_turn(request, "messages", text, "text")
