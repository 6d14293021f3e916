"""How vLLM's ``/v1/messages`` handler turns an Anthropic request into a chat (0.32.0)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.rendering.common import (
    Json,
    LateSystem,
    Message,
    TemplateTraits,
    Unrenderable,
    function_tool,
    objects,
    optional_object,
    optional_objects,
    refuse_part,
    text_of,
)
from gateway.rendering.media import MediaMark

BILLING_HEADER = "x-anthropic-billing-header"


@dataclass(frozen=True, slots=True)
class AnthropicChat:
    """The chat an Anthropic request becomes."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    reasoning_effort: str | None


def anthropic_chat(body: Json, template: TemplateTraits) -> AnthropicChat:
    """Convert a request.

    Raises:
        Unrenderable: media, tool changes in mid-conversation, or a malformed request.
    """
    turns = objects(body.get("messages"))
    # Templates that refuse a late system message get all of them in the first one.
    merge = template.late_system is LateSystem.REFUSED
    messages: list[Message] = []
    system = [_system_field(body.get("system"))]
    if merge:
        late = [turn for turn in turns if turn.get("role") == "system"]
        system += [_system_text(turn.get("content")) for turn in late]
    if any(system):
        messages.append({"role": "system", "content": "".join(system)})
    for turn in turns:
        if turn.get("role") != "system":
            messages.extend(_turn(turn))
        elif not merge and (text := _system_text(turn.get("content"))):
            messages.append({"role": "system", "content": text})
    tools = optional_objects(body, "tools")
    return AnthropicChat(
        messages=messages,
        tools=None if tools is None else [_tool(tool) for tool in tools],
        reasoning_effort=_effort(body, template),
    )


def _system_field(system: Any) -> str:
    """The top-level system text; a billing header is dropped from blocks, not from a string."""
    if system is None or isinstance(system, str):
        return system or ""
    return "".join(_system_blocks(system))


def _system_text(content: Any) -> str:
    if isinstance(content, str):
        return "" if content.startswith(BILLING_HEADER) else content
    return "".join(_system_blocks(content))


def _system_blocks(content: Any) -> Iterator[str]:
    for block in objects(content):
        if block.get("type") in ("tool_addition", "tool_removal"):
            raise Unrenderable("tool_change")
        text = block.get("text") if block.get("type") == "text" else None
        if text and not text_of(text).startswith(BILLING_HEADER):
            yield text


def _turn(turn: Json) -> list[Message]:
    """A user or assistant turn: tool results first, as messages of their own."""
    role, content = text_of(turn.get("role")), turn.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    before: list[Message] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in objects(content):
        kind = block.get("type")
        if isinstance(block, MediaMark):
            parts.append(block)
        elif kind == "text":
            if block.get("text"):
                parts.append({"type": "text", "text": text_of(block["text"])})
        elif kind == "thinking":
            if block.get("thinking") is not None:
                thoughts.append(text_of(block["thinking"]))
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result":
            if role == "user":
                before.extend(_tool_result(block))
            else:
                result = block.get("content")
                parts.append({"type": "text", "text": f"Tool result: {result or ''}"})
        elif kind not in ("redacted_thinking", "tool_reference"):
            raise refuse_part(block)
    message = _assembled(role, parts, calls, thoughts)
    return before if role == "user" and "content" not in message else [*before, message]


def _assembled(
    role: str, parts: list[dict[str, Any]], calls: list[dict[str, Any]], thoughts: list[str]
) -> Message:
    message: Message = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if parts:
        alone = len(parts) == 1 and not isinstance(parts[0], MediaMark)
        message["content"] = parts[0]["text"] if alone else parts
    return message


def _call(block: Json) -> dict[str, Any]:
    return {
        "id": block.get("id") or "",
        "type": "function",
        "function": {
            "name": block.get("name") or "",
            "arguments": optional_object(block, "input"),
        },
    }


def _tool_result(block: Json) -> list[Message]:
    """A tool message with the text, a user's with the media, one more with the references."""
    content = block.get("content")
    texts: list[str] = []
    media: list[dict[str, Any]] = []
    references: list[dict[str, Any]] = []
    if isinstance(content, str):
        texts = [content]
    elif content is not None:
        for item in objects(content):
            kind = item.get("type")
            if isinstance(item, MediaMark):
                media.append(item)
            elif kind == "text":
                texts.append(text_of(item.get("text", "")))
            elif kind == "tool_reference":
                if name := item.get("tool_name") or item.get("name"):
                    references.append({"type": "tool_reference", "name": name})
            elif kind == "image":
                raise Unrenderable("image")
    call_id = block.get("tool_use_id") or ""
    messages: list[Message] = [
        {"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)}
    ]
    if media:
        messages.append({"role": "user", "content": media})
    if references:
        messages.append({"role": "tool", "tool_call_id": call_id, "content": references})
    return messages


def _tool(tool: Json) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise Unrenderable("malformed")
    schema = schema if "type" in schema else {**schema, "type": "object"}
    return {
        "type": "function",
        "function": function_tool(tool.get("name"), {**tool, "parameters": schema}),
    }


def _effort(body: Json, template: TemplateTraits) -> str | None:
    """The reasoning effort: output_config's, unless thinking is disabled outright."""
    if optional_object(body, "thinking").get("type") == "disabled":
        return "none" if template.obeys_effort_none else "low"
    effort = optional_object(body, "output_config").get("effort")
    return None if effort is None else text_of(effort)
