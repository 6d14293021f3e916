"""How SGLang's ``/v1/responses`` handler turns input items into a chat (0.5.23)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.rendering.common import (
    Json,
    LateSystem,
    Message,
    TemplateTraits,
    Unrenderable,
    custom_tool_parameters,
    decoded_object,
    objects,
    optional_object,
    optional_objects,
    text_of,
)
from gateway.rendering.media import MediaMark

DEVELOPER_LABEL = "Developer instructions:"
HIDDEN = frozenset({"id", "status", "type"})


@dataclass(frozen=True, slots=True)
class ResponsesChat:
    """The chat a Responses request becomes."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    tool_choice: Any
    reasoning_effort: Any


def responses_chat(body: Json, template: TemplateTraits) -> ResponsesChat:
    """Convert a request.

    Raises:
        Unrenderable: hosted items, replayed encrypted reasoning, tool namespaces, or a malformed
            request.
    """
    messages: list[Message] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": text_of(body["instructions"])})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        messages += [made for item in objects(given) if (made := _item(item)) is not None]
    messages = _merged_assistants(messages)
    if template.late_system is not LateSystem.RENDERED:
        messages = _one_system(messages)
    tools = [made for tool in optional_objects(body, "tools") or [] for made in _tool(tool)]
    return ResponsesChat(
        messages=messages,
        tools=tools or None,
        tool_choice=_tool_choice(body.get("tool_choice")),
        reasoning_effort=_effort(body),
    )


def _effort(body: Json) -> Any:
    """The effort asked for; a reasoning object without one means medium."""
    if body.get("reasoning") is None:
        return None
    return optional_object(body, "reasoning").get("effort", "medium")


def _item(item: Json) -> Message | None:
    kind = item.get("type")
    if kind == "function_call":
        arguments = item.get("arguments")
        if isinstance(arguments, str):
            arguments = decoded_object(arguments)
        return _call(item, arguments if isinstance(arguments, dict) else {})
    if kind == "custom_tool_call":
        return _call(item, {"input": item.get("input") or ""})
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = {"tool_call_id": item.get("call_id"), "content": _tool_output(item)}
        return {"role": "tool", **output}
    if kind == "reasoning":
        return _reasoning(item)
    if kind not in (None, "message"):
        raise Unrenderable("unknown_item")
    message = {key: value for key, value in item.items() if value is not None}
    if message.get("role") == "developer":
        message |= {"role": "system", "content": _labelled(message.get("content"))}
    if isinstance(message.get("content"), list):
        message["content"] = [_part(part) for part in objects(message["content"])]
    return {key: value for key, value in message.items() if key not in HIDDEN}


def _call(item: Json, arguments: dict[str, Any]) -> Message:
    function = {"name": item.get("name"), "arguments": msgspec.json.encode(arguments).decode()}
    call = {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call]}


def _tool_output(item: Json) -> Any:
    output = item.get("output", "")
    if isinstance(output, list):
        return "".join(text_of(part.get("text", "")) for part in objects(output))
    return output


def _reasoning(item: Json) -> Message | None:
    """Reasoning handed back: its summary, else its content; nothing where both are empty."""
    texts = _texts(item, "summary") or _texts(item, "content")
    if not texts:
        if item.get("encrypted_content"):
            raise Unrenderable("encrypted_reasoning")
        return None
    return {"role": "assistant", "reasoning_content": "\n".join(texts)}


def _texts(item: Json, member: str) -> list[str]:
    parts = optional_objects(item, member) or []
    return [text_of(part["text"]) for part in parts if part.get("text")]


def _part(part: Json) -> dict[str, Any]:
    if isinstance(part, MediaMark):
        return part
    if part.get("type") in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text", "")}
    return dict(part)


def _labelled(content: Any) -> Any:
    """A developer's text with its label, since it becomes a system message."""
    if isinstance(content, str):
        return f"{DEVELOPER_LABEL}\n{content}"
    if not isinstance(content, list):
        return content
    for index, part in enumerate(content):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            labelled = {**part, "text": f"{DEVELOPER_LABEL}\n{part['text']}"}
            return [*content[:index], labelled, *content[index + 1 :]]
    return [{"type": "input_text", "text": DEVELOPER_LABEL}, *content]


def _merged_assistants(messages: Iterable[Message]) -> list[Message]:
    """One message for each run of assistant items."""
    merged: list[Message] = []
    for message in messages:
        previous = merged[-1] if merged else {}
        follows = message.get("role") == previous.get("role") == "assistant"
        same_phase = previous.get("phase") == message.get("phase")
        if follows and (same_phase or previous.keys() == {"role", "reasoning_content"}):
            merged[-1] = _merged(previous, message)
        else:
            merged.append(message)
    return merged


def _merged(previous: Message, message: Message) -> Message:
    result = dict(previous)
    if message.get("phase") is not None:
        result["phase"] = message["phase"]
    new, old = message.get("content"), previous.get("content")
    if new is not None and new != "":
        result["content"] = new if old is None or old == "" else _joined(old, new)
    if message.get("tool_calls"):
        result["tool_calls"] = [*(previous.get("tool_calls") or ()), *message["tool_calls"]]
    if message.get("reasoning_content"):
        thoughts = (previous.get("reasoning_content"), message["reasoning_content"])
        result["reasoning_content"] = "\n".join(thought for thought in thoughts if thought)
    return result


def _joined(old: Any, new: Any) -> Any:
    if isinstance(old, str) and isinstance(new, str):
        return f"{old}\n\n{new}"
    return _as_parts(old) + _as_parts(new)


def _as_parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _one_system(messages: list[Message]) -> list[Message]:
    """Every system text in one message at the front."""
    system = [message.get("content") for message in messages if message.get("role") == "system"]
    texts = [
        text for content in system for part in _system_parts(content) if (text := part) is not None
    ]
    others = [message for message in messages if message.get("role") != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others] if texts else others


def _system_parts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def _tool(tool: Json) -> list[dict[str, Any]]:
    """The function a tool becomes; hosted tools become none."""
    kind = tool.get("type")
    if kind == "function":
        description, parameters = tool.get("description"), tool.get("parameters")
    elif kind == "custom":
        if optional_object(tool, "format").get("type") == "grammar":
            raise Unrenderable("grammar_tool")
        description, parameters = tool.get("description") or None, custom_tool_parameters()
    elif kind == "namespace":
        raise Unrenderable("tool_namespace")
    else:
        return []
    function = {
        "name": text_of(tool.get("name")),
        "description": description,
        "parameters": parameters,
        "strict": bool(tool.get("strict")),
    }
    return [{"type": "function", "function": function}]


def _tool_choice(choice: Any) -> Any:
    """A named function or custom tool in chat shape; other objects cannot be forced."""
    if not isinstance(choice, dict):
        return choice
    name = choice.get("name") or optional_object(choice, "function").get("name")
    if choice.get("type") in ("function", "custom") and name:
        return {"type": "function", "function": {"name": name}}
    return "auto"
