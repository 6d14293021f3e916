"""How llama.cpp turns an Anthropic Messages request into a chat request (tools/server)."""

from __future__ import annotations

from typing import Any

from gateway.rendering.common import (
    Json,
    Message,
    Unrenderable,
    objects,
    optional_objects,
    refuse_part,
)

BILLING_HEADER = b"x-anthropic-billing-header:"
STAMP, STAMP_BYTES = b"cch=", 5


def anthropic_chat(body: Json) -> Json:
    """The chat request; members it does not pass on are left out.

    Raises:
        Unrenderable: it holds images, or is malformed.
    """
    messages = _system(body.get("system"))
    for message in objects(body.get("messages")):
        messages += _messages(message)
    chat: dict[str, Any] = {"messages": messages}
    tools = optional_objects(body, "tools")
    if tools is not None:
        chat["tools"] = [_tool(tool) for tool in tools]
    if "chat_template_kwargs" in body:
        chat["chat_template_kwargs"] = body["chat_template_kwargs"]
    return chat


def _system(system: Any) -> list[Message]:
    """One message wherever ``system`` is there, even for an empty text."""
    if system is None:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": _unstamped(system)}]
    texts = [_unstamped(_string(each, "text")) for each in objects(system) if _is_text(each)]
    return [{"role": "system", "content": "".join(texts)}]


def _unstamped(text: str) -> str:
    """A system text whose billing header's stamp is five f, so that the cache finds it again."""
    raw = text.encode("utf-8", "surrogatepass")
    if not raw.startswith(BILLING_HEADER):
        return text
    start = raw.find(STAMP, len(BILLING_HEADER)) + len(STAMP)
    end = start + STAMP_BYTES
    if start < len(STAMP) or raw[end : end + 1] != b";":
        return text
    return (raw[:start] + b"f" * STAMP_BYTES + raw[end:]).decode("utf-8", "surrogatepass")


def _messages(message: Json) -> list[Message]:
    """A message without its blocks' kinds: text first, then the tools' results."""
    content = message.get("content")
    if not isinstance(content, list):
        left_out = "content" not in message and message.get("role") == "assistant"
        return [] if left_out else [dict(message)]
    texts: list[Json] = []
    calls: list[dict[str, Any]] = []
    results: list[Message] = []
    thinking = ""
    for block in objects(content):
        match block.get("type"):
            case "text":
                texts.append(block)
            case "thinking":
                thinking += _string(block, "thinking")
            case "tool_use":
                calls.append(_call(block))
            case "tool_result":
                results.append(_result(block))
            case "image" | "document" | "file":
                raise refuse_part(block)
    said: Message = {"role": message.get("role"), "content": texts or ""}
    if calls:
        said["tool_calls"] = calls
    if thinking:
        said["reasoning_content"] = thinking
    return [said, *results] if texts or calls or thinking else results


def _call(block: Json) -> dict[str, Any]:
    called = {"name": _string(block, "name"), "arguments": block.get("input", {})}
    if isinstance(called["arguments"], str):
        raise Unrenderable("malformed")
    return {"id": _string(block, "id"), "type": "function", "function": called}


def _result(block: Json) -> Message:
    """A tool's message; texts of a list follow each other without anything between."""
    content = block.get("content")
    if isinstance(content, list):
        images = [item for item in objects(content) if item.get("type") == "image"]
        if images:
            raise refuse_part(images[0])
        content = "".join(_string(item, "text") for item in content if _is_text(item))
    text = content if isinstance(content, str) else ""
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id"), "content": text}


def _tool(tool: Json) -> dict[str, Any]:
    """A function, also where the tool is one that Anthropic would run."""
    function = {
        "name": _string(tool, "name"),
        "description": _string(tool, "description"),
        "parameters": tool.get("input_schema", {}),
    }
    return {"type": "function", "function": function}


def _is_text(block: Json) -> bool:
    return block.get("type") == "text"


def _string(block: Json, name: str) -> str:
    """A member; empty where it is missing or no string."""
    value = block.get(name)
    return value if isinstance(value, str) else ""
