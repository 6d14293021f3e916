"""How vLLM's ``/v1/responses`` handler turns input items into a chat (0.32.0)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.rendering.common import (
    Json,
    Message,
    Unrenderable,
    custom_tool_parameters,
    function_tool,
    objects,
    optional_object,
    optional_objects,
    refuse_part,
    text_of,
)


@dataclass(frozen=True, slots=True)
class ResponsesChat:
    """The chat a Responses request becomes. ``unfinished``: its last message is to be continued."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    reasoning_effort: str | None
    unfinished: bool


def responses_chat(body: Json) -> ResponsesChat:
    """Convert a request.

    Raises:
        Unrenderable: media, hosted items, or a malformed request.
    """
    messages: list[Message] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": text_of(body["instructions"])})
    given = body.get("input")
    items: list[dict[str, Any]] = []
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        items = objects(given)
        for item in items:
            _add(item, messages)
    effort = optional_object(body, "reasoning").get("effort")
    tools = optional_objects(body, "tools")
    return ResponsesChat(
        messages=messages,
        tools=[made for tool in tools for made in _tools(tool)] if tools else None,
        reasoning_effort=None if effort is None else text_of(effort),
        unfinished=bool(items) and _unfinished(items[-1]),
    )


def _unfinished(item: Json) -> bool:
    partial = item.get("status") in ("in_progress", "incomplete")
    return partial and item.get("type", "message") in ("message", "reasoning")


def _add(item: Json, messages: list[Message]) -> None:
    """Append what an item becomes, or fold it into the assistant message before it."""
    kind = item.get("type")
    previous = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind in ("function_call", "custom_tool_call"):
        call = _call(item)
        if previous is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            previous.setdefault("tool_calls", []).append(call)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = {"content": item.get("output"), "tool_call_id": item.get("call_id")}
        messages.append({"role": "tool", **output})
    elif kind == "reasoning":
        _fold(messages, previous, "reasoning", _reasoning(item))
    elif kind not in (None, "message"):
        raise Unrenderable("unknown_item")
    elif item.get("role") == "assistant":
        _fold(messages, previous, "content", _assistant_text(item.get("content")))
    else:
        messages.append({**item, "role": text_of(item.get("role"))})


def _fold(messages: list[Message], previous: Message | None, member: str, text: str) -> None:
    if previous is not None and previous.get(member) is None:
        previous[member] = text
    else:
        messages.append({"role": "assistant", member: text})


def _call(item: Json) -> dict[str, Any]:
    name = text_of(item.get("name"))
    if item["type"] == "custom_tool_call":
        arguments = msgspec.json.encode({"input": item.get("input") or ""}).decode()
    else:
        arguments = text_of(item.get("arguments"))
        if item.get("namespace"):
            name = f"{item['namespace']}__{name}"
    return {
        "id": item.get("call_id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _reasoning(item: Json) -> str:
    """The first text of a reasoning item; the summary stands in where there is no content."""
    if item.get("encrypted_content"):
        raise Unrenderable("encrypted_reasoning")
    parts = optional_objects(item, "content") or optional_objects(item, "summary") or []
    return text_of(parts[0].get("text")) if parts else ""


def _assistant_text(content: Any) -> str:
    """An assistant item's text: only the first part of a list counts."""
    if isinstance(content, str):
        return content
    parts = objects(content)
    if not parts or "text" not in parts[0]:
        raise refuse_part(parts[0]) if parts else Unrenderable("malformed")
    return text_of(parts[0]["text"])


def _tools(tool: Json) -> Iterator[dict[str, Any]]:
    """The functions a tool shows the template; hosted tools show none."""
    kind = tool.get("type")
    if kind == "function":
        yield _function(tool.get("name"), tool)
    elif kind == "custom":
        fields = {"description": tool.get("description"), "parameters": custom_tool_parameters()}
        yield _function(tool.get("name"), fields)
    elif kind == "namespace":
        for member in objects(tool.get("tools")):
            if member.get("type") == "function":
                name = f"{tool.get('name')}__{text_of(member.get('name'))}"
                yield _function(name, member)


def _function(name: Any, fields: Json) -> dict[str, Any]:
    return {"type": "function", "function": function_tool(name, fields)}
