"""Engines whose rules are not known in detail: only what transformers itself defines.

A conversation of plain strings, rendered by the model's template with a generation prompt, means
the same everywhere. Anything an engine could treat in its own way is opaque.
"""

from __future__ import annotations

from gateway.rendering.common import (
    Json,
    Message,
    Templates,
    Unrenderable,
    objects,
    refuse_hidden_input,
    refuse_part,
    rendering,
    text_of,
)
from gateway.types import ChatPrompt, TemplateCall

PLAIN_ROLES = frozenset({"system", "user", "assistant"})
# Request members that some engine hands to its template or turns into text.
SHAPING = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "functions",
    "reasoning",
    "reasoning_effort",
    "tools",
)


def _build(prompt: ChatPrompt, _templates: Templates) -> TemplateCall:
    if prompt.dialect != "openai_chat":
        raise Unrenderable("engine_rendering")
    refuse_hidden_input(prompt.body)
    if any(prompt.body.get(member) is not None for member in SHAPING):
        raise Unrenderable("engine_rendering")
    messages = [_message(message) for message in objects(prompt.body.get("messages"))]
    if not messages or messages[-1]["role"] == "assistant":
        raise Unrenderable("engine_rendering")
    return TemplateCall(messages=messages)


render = rendering(_build)


def _message(message: Json) -> Message:
    role, content = text_of(message.get("role")), message.get("content")
    if isinstance(content, list):
        parts = objects(content)
        media = [part for part in parts if part.get("type") != "text"]
        raise refuse_part(media[0]) if media else Unrenderable("engine_rendering")
    if role not in PLAIN_ROLES or message.keys() - {"role", "content"}:
        raise Unrenderable("engine_rendering")
    return {"role": role, "content": text_of(content)}
