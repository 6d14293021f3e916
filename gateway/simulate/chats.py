"""Requests of four dialects turned into one ``Chat``, by the rules of SGLang 0.5.23.

The kinds of the structured fields were checked before (``api.service.read_body``).

Sources in its wheel: ``protocol.py`` and ``serving_chat.py`` (OpenAI), ``anthropic/serving.py``,
``serving_responses.py``. Every function raises EngineRefusal (400) for a body it cannot use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.simulate.engine import EngineRefusal
from gateway.simulate.tokeniser import Chat

Body = Mapping[str, Any]
FUNCTION_FIELDS = ("description", "name", "parameters", "strict", "defer_loading")
DEVELOPER_LABEL = "Developer instructions:"


def from_openai(body: Body, *, generation_prompt: bool | None = None) -> Chat:
    """A chat completion's conversation. ``generation_prompt`` is a tokenise request's option."""
    messages = body.get("messages")
    if not messages:
        raise EngineRefusal("messages: Field required, and it cannot be empty.")
    return Chat(
        messages=[_known_message(message) for message in messages],
        tools=_chosen_tools(body.get("tools"), body.get("tool_choice")),
        kwargs=_template_kwargs(body),
        continue_final=bool(body.get("continue_final_message")),
        generation_prompt=generation_prompt,
    )


def _known_message(message: Body) -> Body:
    """User messages keep role and content only: the engine's model of them has nothing else."""
    if message.get("role") == "user":
        return {"role": "user", "content": message.get("content")}
    return message


def _chosen_tools(tools: Any, choice: Any) -> list[dict[str, Any]] | None:
    """The tools a template sees: none for "none", the named one for a named choice."""
    if not tools or choice == "none":
        return None
    dumped = [_dumped_tool(tool) for tool in tools]
    if isinstance(choice, dict):
        function = choice.get("function")
        wanted = function.get("name") if isinstance(function, dict) else None
        dumped = [tool for tool in dumped if tool["function"]["name"] == wanted]
    return dumped or None


def _dumped_tool(tool: Body) -> dict[str, Any]:
    """A tool as pydantic dumps it there: known fields in the client's order, then the defaults."""
    function = tool.get("function")
    if not isinstance(function, dict) or "name" not in function:
        raise EngineRefusal("tools: each needs a function with a name.")
    known = {key: value for key, value in function.items() if key in FUNCTION_FIELDS}
    for key in ("description", "parameters"):
        known.setdefault(key, None)
    deferred = tool.get("defer_loading")
    if deferred is not None and known.get("defer_loading") is None:
        known["defer_loading"] = deferred
    for key in ("strict", "defer_loading"):
        if known.get(key) is None:
            known.pop(key, None)
    return {
        "type": tool.get("type", "function"),
        "function": known,
        "defer_loading": deferred,
    }


def _template_kwargs(body: Body) -> dict[str, Any]:
    """Template arguments, with the thinking switches that a reasoning effort implies."""
    kwargs = dict(body.get("chat_template_kwargs") or {})
    effort = body.get("reasoning_effort")
    if effort is None:
        return kwargs
    for name in ("thinking", "enable_thinking"):
        kwargs.setdefault(name, effort != "none")
    return {"reasoning_effort": effort} | kwargs


# --- Anthropic --------------------------------------------------------------------------------


def from_anthropic(body: Body, *, inline_system: bool) -> Chat:
    """A Messages request's conversation. ``inline_system``: the template keeps system messages
    in the middle; else they are merged into the leading one.
    """
    # A blank string is no system message; a blank block of a list is one, as in the engine.
    written = body.get("system")
    blank = isinstance(written, str) and not written.strip()
    system = [] if blank else [text for text in _anthropic_texts(written) if text]
    messages: list[Body] = []
    for turn in body.get("messages") or ():
        if turn.get("role") == "system" and not inline_system:
            system += [
                text for part in _anthropic_texts(turn.get("content")) if (text := part.strip())
            ]
        else:
            messages += _anthropic_turn(turn)
    if system:
        messages.insert(0, {"role": "system", "content": "\n".join(system)})
    if (body.get("thinking") or {}).get("type", "disabled") != "disabled":
        raise EngineRefusal(
            "Anthropic thinking is not supported for models without a reasoning parser"
        )
    tools = [
        {
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description") or "",
                "parameters": tool["input_schema"],
                "strict": tool.get("strict", False),
            }
        }
        for tool in body.get("tools") or ()
        if "input_schema" in tool
    ]
    choice = _anthropic_choice(body.get("tool_choice"))
    return from_openai({"messages": messages, "tools": tools, "tool_choice": choice})


def _anthropic_choice(choice: Any) -> Any:
    """A tool choice in OpenAI's shape; only "none" and a named tool change what is rendered."""
    if choice is None:
        return None
    if not isinstance(choice, dict):
        raise EngineRefusal("tool_choice: an object is required.")
    if choice.get("type") == "tool":
        return {"function": {"name": choice.get("name")}}
    return choice.get("type")


def _anthropic_texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [
        str(block["text"])
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "text" and block.get("text")
    ]


def _anthropic_turn(turn: Body) -> list[Body]:
    """One turn as OpenAI messages: tool results become messages of their own, in order."""
    role, content = turn.get("role"), turn.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    out: list[Body] = []
    parts: list[Body] = []
    calls: list[Body] = []
    for block in content or ():
        kind = block.get("type")
        if kind == "text":
            parts.append({"type": "text", "text": block.get("text", "")})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _source_url(block)}})
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {})
            calls.append(
                {
                    "id": block.get("id"),
                    "type": "function",
                    "function": {"name": block.get("name"), "arguments": arguments},
                }
            )
        elif kind == "tool_result":
            if parts:
                out.append(_with_parts({"role": role}, parts))
                parts = []
            out.append(
                {
                    "role": "tool",
                    "tool_call_id": block.get("tool_use_id"),
                    "content": "\n".join(_anthropic_texts(block.get("content"))),
                }
            )
    message: Body = {"role": role, "tool_calls": calls} if calls else {"role": role}
    if parts:
        out.append(_with_parts(message, parts))
    elif calls:
        out.append(message)
    elif role != "user":
        out.append({"role": role, "content": ""})
    return out


def _source_url(block: Body) -> str:
    source = block.get("source") or {}
    inline = f"data:{source.get('media_type')};base64,{source.get('data')}"
    return inline if source.get("type") == "base64" else str(source.get("url"))


def _with_parts(message: Body, parts: list[Body]) -> Body:
    single = len(parts) == 1 and parts[0]["type"] == "text"
    return {**message, "content": parts[0]["text"] if single else parts}


# --- Responses --------------------------------------------------------------------------------


def from_responses(body: Body, *, inline_system: bool) -> Chat:
    """A Responses request's conversation. Stored history is not simulated."""
    if body.get("previous_response_id") is not None:
        raise EngineRefusal("previous_response_id: the response was not found.", status=404)
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise EngineRefusal("input: text or a list of items is required.")
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    messages += [_response_item(item) for item in items]
    messages = _merged_assistants(messages)
    if not inline_system:
        messages = _leading_system(messages)
    shown = ("name", "description", "parameters")
    tools = [
        {"function": {key: tool.get(key) for key in shown} | {"strict": bool(tool.get("strict"))}}
        for tool in body.get("tools") or ()
        if tool.get("type") == "function"
    ]
    effort = (body.get("reasoning") or {}).get("effort")
    return from_openai(
        {
            "messages": messages,
            "tools": tools,
            "tool_choice": body.get("tool_choice"),
            "reasoning_effort": effort,
            "chat_template_kwargs": body.get("chat_template_kwargs"),
        }
    )


def _response_item(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise EngineRefusal("input: each item must be an object.")
    kind = item.get("type") or "message"
    if kind == "function_call":
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments") or "{}"},
        }
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        output = item.get("output", "")
        text = "".join(_part_texts(output)) if isinstance(output, list) else output
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": text}
    if kind == "reasoning":
        parts = item.get("summary") or item.get("content") or ()
        return {"role": "assistant", "reasoning_content": "\n".join(_part_texts(parts))}
    if kind != "message":
        raise EngineRefusal(f"Unsupported Responses API input item type: {kind!r}")
    message = {key: value for key, value in item.items() if key not in ("id", "status", "type")}
    if isinstance(message.get("content"), list):
        message["content"] = [_chat_part(part) for part in message["content"]]
    if message.get("role") == "developer":
        message |= {"role": "system", "content": _labelled(message.get("content"))}
    return message


def _part_texts(parts: Any) -> list[str]:
    given = parts if isinstance(parts, list) else ()
    return [str(p["text"]) for p in given if isinstance(p, dict) and p.get("text")]


def _chat_part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text", "")}
    return part


def _labelled(content: Any) -> Any:
    """A developer message says so once it has become a system message."""
    if isinstance(content, str):
        return f"{DEVELOPER_LABEL}\n{content}"
    parts = list(content or ())
    for index, part in enumerate(parts):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            parts[index] = {**part, "text": f"{DEVELOPER_LABEL}\n{part['text']}"}
            return parts
    return [{"type": "text", "text": DEVELOPER_LABEL}, *parts]


def _merged_assistants(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Consecutive assistant items are one turn: texts joined, calls and reasoning gathered."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        last = merged[-1] if merged else {}
        if message.get("role") != "assistant" or last.get("role") != "assistant":
            merged.append(dict(message))
            continue
        last["content"] = _joined(last.get("content"), message.get("content"))
        if calls := message.get("tool_calls"):
            last["tool_calls"] = [*(last.get("tool_calls") or ()), *calls]
        if reasoning := message.get("reasoning_content"):
            before = last.get("reasoning_content")
            last["reasoning_content"] = f"{before}\n{reasoning}" if before else reasoning
    return merged


def _joined(before: Any, after: Any) -> Any:
    if not before or not after:
        return before or after
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}\n\n{after}"
    parts = [
        [{"type": "text", "text": side}] if isinstance(side, str) else side
        for side in (before, after)
    ]
    return [*parts[0], *parts[1]]


def _leading_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    chunks: list[str] = []
    for message in messages:
        if message.get("role") == "system":
            content = message.get("content")
            chunks += [content] if isinstance(content, str) else _part_texts(content or ())
    others = [message for message in messages if message.get("role") != "system"]
    if not chunks:
        return others
    return [{"role": "system", "content": "\n\n".join(chunks)}, *others]
