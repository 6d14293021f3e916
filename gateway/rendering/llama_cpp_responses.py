"""How llama.cpp turns a Responses request into a chat request (tools/server)."""

from __future__ import annotations

from typing import Any

from gateway.rendering.common import (
    Json,
    Message,
    Unrenderable,
    objects,
    optional_object,
    optional_objects,
    refuse_part,
    text_of,
)

INPUT_ROLES = frozenset({"user", "system", "developer"})


def responses_chat(body: Json) -> Json:
    """The chat request; what is not converted passes on as it is.

    Raises:
        Unrenderable: it holds images or items of unknown kinds.
    """
    messages: list[Message] = []
    if "instructions" in body:
        messages.append({"role": "system", "content": body["instructions"] or ""})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        for item in objects(given):
            _add(item, messages)
    chat = {name: value for name, value in body.items() if name not in ("input", "instructions")}
    chat["messages"] = messages
    tools = optional_objects(body, "tools")
    if tools is not None:
        chat["tools"] = [_tool(tool) for tool in tools if tool.get("type") == "function"]
    reasoning = optional_object(body, "reasoning")
    if "effort" in reasoning:
        chat["reasoning_effort"] = reasoning["effort"]
    return chat


def _tool(tool: Json) -> dict[str, Any]:
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _add(item: Json, messages: list[Message]) -> None:
    """Put an item after the messages, or into the last where that is an assistant's."""
    role, kind = item.get("role"), item.get("type")
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    if role in INPUT_ROLES and isinstance(content, list):
        parts = [_part(part, ("input_text",)) for part in objects(content)]
        messages.append({"role": role, "content": parts})
    elif role == "assistant" and kind == "message":
        parts = [_part(part, ("output_text", "input_text")) for part in objects(content)]
        said = _assistant(messages)
        before = said.get("content")
        said["content"] = [*(before if isinstance(before, list) else []), *parts]
    elif kind == "function_call":
        called = {name: text_of(item.get(name)) for name in ("arguments", "name")}
        call = {"function": called, "id": text_of(item.get("call_id")), "type": "function"}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        messages.append(
            {
                "role": "tool",
                "tool_call_id": text_of(item.get("call_id")),
                "content": _output(item.get("output")),
            }
        )
    elif kind == "reasoning" and isinstance(item.get("summary"), list):
        thought = objects(content)
        if not thought:
            raise Unrenderable("malformed")
        said = _assistant(messages)
        said.setdefault("content", [])
        said["reasoning_content"] = text_of(thought[0].get("text"))
    else:
        raise Unrenderable("malformed")


def _assistant(messages: list[Message]) -> Message:
    """The last message if it is an assistant's, else a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _output(output: Any) -> str | list[dict[str, Any]]:
    if isinstance(output, str):
        return output
    return [_part(part, ("input_text",)) for part in objects(output)]


def _part(part: Json, kinds: tuple[str, ...]) -> dict[str, Any]:
    if part.get("type") not in kinds:
        raise refuse_part(part)
    return {"type": "text", "text": text_of(part.get("text"))}
