"""How llama.cpp's server turns a request into chat template input (build 11434, pinned by tests).

It has its own template engine, and per-model handlers that rewrite messages where tools or
reasoning come in; a chat of plain text is rendered as any other engine would. So text chats are
rendered here, and everything its handlers touch is opaque: the server's own counting endpoints
are exact.
"""

from __future__ import annotations

from typing import Any

from gateway.rendering.common import (
    Json,
    Message,
    Templates,
    TemplateTraits,
    Unrenderable,
    objects,
    refuse_hidden_input,
    refuse_part,
    rendering,
    template_kwargs,
    text_of,
)
from gateway.types import ChatPrompt, TemplateCall

PLAIN_ROLES = frozenset({"system", "user", "assistant", "developer"})
REWRITTEN = ("tools", "continue_final_message", "reasoning_effort", "reasoning_format")


def _build(prompt: ChatPrompt, templates: Templates) -> TemplateCall:
    body = prompt.body
    if prompt.dialect != "openai_chat":
        raise Unrenderable("engine_rendering")
    refuse_hidden_input(body)
    if any(body.get(member) for member in REWRITTEN):
        raise Unrenderable("engine_rendering")
    template = templates.default
    messages = [_message(message, template) for message in objects(body.get("messages"))]
    if not messages or messages[-1]["role"] == "assistant":
        raise Unrenderable("engine_rendering")  # it continues a final assistant message
    return TemplateCall(
        messages=messages,
        add_generation_prompt=body.get("add_generation_prompt") is not False,
        kwargs={"enable_thinking": True} | _variables(body),
        # A BOS is added as the model wants it, once: not where the template writes it.
        add_special_tokens="bos_token" not in template.source,
    )


render = rendering(_build)


def _variables(body: Json) -> dict[str, Any]:
    kwargs = template_kwargs(body)
    if kwargs.keys() & {"add_generation_prompt", "bos_token", "eos_token"}:
        raise Unrenderable("template_kwargs")
    return kwargs


def _message(message: Json, template: TemplateTraits) -> Message:
    role = text_of(message.get("role"))
    if role not in PLAIN_ROLES or message.get("tool_calls") or message.get("reasoning_content"):
        raise Unrenderable("engine_rendering")
    content = message.get("content")
    if not isinstance(content, str):
        if template.iterates_content:
            raise Unrenderable("engine_rendering")
        content = "" if content is None else _joined(objects(content))
    return {"role": "system" if role == "developer" else role, "content": content}


def _joined(parts: list[dict[str, Any]]) -> str:
    """Parts joined with newlines; empty ones at the start leave no newline."""
    text = ""
    for part in parts:
        if part.get("type") != "text":
            raise refuse_part(part)
        text += ("\n" if text else "") + text_of(part.get("text"))
    return text
