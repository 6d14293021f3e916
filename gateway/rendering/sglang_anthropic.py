"""How SGLang's ``/v1/messages`` handler turns an Anthropic request into a chat (0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gateway.rendering.common import (
    Json,
    LateSystem,
    Message,
    TemplateTraits,
    Unrenderable,
    objects,
    optional_object,
    optional_objects,
    refuse_part,
    text_of,
)
from gateway.rendering.media import MediaMark

TOOL_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True, slots=True)
class AnthropicChat:
    """The chat an Anthropic request becomes."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    tool_choice: Any
    reasoning_effort: str | None


def anthropic_chat(body: Json, template: TemplateTraits) -> AnthropicChat:
    """Convert a request.

    Raises:
        Unrenderable: media, thinking (what it becomes depends on the server's reasoning parser),
            or a malformed request.
    """
    if body.get("thinking") is not None:
        raise Unrenderable("thinking")
    turns = objects(body.get("messages"))
    merge = template.late_system is not LateSystem.RENDERED
    messages: list[Message] = []
    system = _system_field(body.get("system"))
    if merge:
        late = [turn for turn in turns if turn.get("role") == "system"]
        system += [text for turn in late if (text := _trimmed(turn.get("content")))]
    if system:
        messages.append({"role": "system", "content": "\n".join(system)})
    for turn in turns:
        if not (merge and turn.get("role") == "system"):
            messages.extend(_turn(turn))
    tools = optional_objects(body, "tools") or []
    effort = optional_object(body, "output_config").get("effort")
    return AnthropicChat(
        messages=messages,
        tools=[_tool(tool) for tool in tools if not _is_hosted(tool)] or None,
        tool_choice=_tool_choice(optional_object(body, "tool_choice")),
        reasoning_effort="max" if effort == "xhigh" else effort,
    )


def _system_field(system: Any) -> list[str]:
    if system is None:
        return []
    if isinstance(system, str):
        return [system] if system.strip() else []
    texts = [block.get("text") for block in objects(system) if block.get("type") == "text"]
    return [text_of(text) for text in texts if text]


def _trimmed(content: Any) -> str:
    if isinstance(content, str):
        return content.strip()
    blocks = [block for block in objects(content) if block.get("type") == "text"]
    texts = [text_of(block.get("text", "")).strip() for block in blocks]
    return "\n".join(text for text in texts if text)


def _turn(turn: Json) -> list[Message]:
    """A turn; a user's tool results keep their place between that user's other parts."""
    role, content = text_of(turn.get("role")), turn.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    messages: list[Message] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in objects(content):
        kind = block.get("type")
        if isinstance(block, MediaMark):
            parts.append(block)
        elif kind == "text":
            parts.append({"type": "text", "text": text_of(block.get("text"))})
        elif kind == "search_result":
            parts += _text_parts(_search_result(block))
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            if parts:
                messages.append({"role": role, "content": _content(parts)})
                parts = []
            messages.extend(_tool_result(block))
        elif kind == "tool_result":
            texts = [part["text"] for part in _result_parts(block) if part["type"] == "text"]
            parts.append({"type": "text", "text": "Tool result: " + "\n".join(texts)})
        elif kind in ("thinking", "redacted_thinking"):
            raise Unrenderable("thinking_history")
        elif kind != "tool_reference":
            raise refuse_part(block)
    return messages + _rest(role, parts, calls)


def _rest(role: str, parts: list[dict[str, Any]], calls: list[dict[str, Any]]) -> list[Message]:
    message: Message = {"role": role}
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = _content(parts)
    elif not calls:
        if role == "user":
            return []
        message["content"] = ""
    return [message]


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and parts[0]["type"] == "text" and not isinstance(parts[0], MediaMark):
        return text_of(parts[0]["text"])
    return parts


def _call(block: Json) -> dict[str, Any]:
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": block.get("name"), "arguments": optional_object(block, "input")},
    }


def _tool_result(block: Json) -> list[Message]:
    """Tool messages, one a run of references or of other parts."""
    call_id = block.get("tool_use_id") or block.get("id") or ""
    parts = _result_parts(block)
    runs = [list(run) for _, run in groupby(parts, lambda part: part["type"] == "tool_reference")]
    contents: list[Any] = [_content(run) for run in runs] or [""]
    return [{"role": "tool", "tool_call_id": call_id, "content": content} for content in contents]


def _result_parts(block: Json) -> list[dict[str, Any]]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return _text_parts(content or "")
    parts: list[dict[str, Any]] = []
    for item in objects(content):
        kind = item.get("type")
        if isinstance(item, MediaMark):
            parts.append(item)
        elif kind == "text":
            parts += _text_parts(text_of(item.get("text")))
        elif kind == "search_result":
            parts += _text_parts(_search_result(item))
        elif kind == "tool_reference":
            if name := item.get("tool_name") or item.get("name"):
                parts.append({"type": "tool_reference", "name": name})
        elif kind == "image":
            raise Unrenderable("image")
    return parts


def _text_parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _search_result(block: Json) -> str:
    lines = []
    if block.get("title"):
        lines.append(f"Title: {block['title']}")
    source = block.get("source")
    if isinstance(source, dict):
        source = source.get("url") or source.get("text")
    if source:
        lines.append(f"Source: {source}")
    content = optional_objects(block, "content") or []
    texts = [item["text"] for item in content if item.get("type") == "text" and item.get("text")]
    if texts:
        lines.append("Content: " + "\n".join(texts))
    return "\n".join(lines)


def _is_hosted(tool: Json) -> bool:
    """Tools that Anthropic itself runs have a dated type and no schema; SGLang drops them."""
    kind = tool.get("type")
    return isinstance(kind, str) and kind != "custom" and "input_schema" not in tool


def _tool(tool: Json) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise Unrenderable("malformed")
    function = {
        "name": text_of(tool.get("name")),
        "description": tool.get("description") or "",
        "parameters": schema if "type" in schema else {**schema, "type": "object"},
        "strict": tool.get("strict", False),
    }
    return {
        "type": "function",
        "function": function,
        "defer_loading": tool.get("defer_loading"),
    }


def _tool_choice(choice: Json) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return TOOL_CHOICES.get(kind, "auto") if isinstance(kind, str) else "auto"
