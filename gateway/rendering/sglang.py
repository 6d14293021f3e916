"""How SGLang turns a request into chat template input (facts read from 0.5.23, pinned by tests).

Messages keep most members; content parts are joined with spaces, unless the template looks as if
it took parts. A final assistant message becomes a user message, or, with continue_final_message,
is tokenised apart and appended. Settings of the server that requests do not show (default
template kwargs, a built-in conversation template, reasoning parsers) are not known here: where
they matter for certain the prompt is opaque, else the check of usage finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct, field

from gateway.rendering.common import (
    Json,
    Message,
    Readers,
    Templates,
    TemplateTraits,
    Unrenderable,
    decoded_object,
    objects,
    optional_object,
    optional_objects,
    read_request,
    refuse_part,
    rendering,
    template_kwargs,
    text_of,
)
from gateway.rendering.media import MediaMark
from gateway.rendering.sglang_anthropic import anthropic_chat
from gateway.rendering.sglang_responses import responses_chat
from gateway.types import ChatPrompt, TemplateCall

MEDIA_WORDS = ("image", "audio", "video", "vision")
LOOP_NAMES = frozenset({"message", "msg", "m"})
ROLES = frozenset(
    {"system", "assistant", "tool", "function", "developer", "latest_reminder", "root"}
)
TOOL_ROLES = frozenset({"root", "system", "developer"})
JSON_TYPES = frozenset({"string", "number", "integer", "object", "array", "boolean", "null"})
SWITCHED_ON = frozenset({"1", "true", "yes", "y", "on"})


class Chat(Struct, frozen=True):
    """A request as SGLang's chat handler sees it, whatever its dialect was."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_effort: Any = None
    continue_final_message: bool = False


def openai_chat(body: Json, _templates: Templates) -> Chat:
    """A chat completion request as it stands."""
    kwargs, effort = _reasoning(body)
    return Chat(
        messages=objects(body.get("messages")),
        tools=optional_objects(body, "tools"),
        tool_choice=body.get("tool_choice"),
        kwargs=kwargs,
        reasoning_effort=effort,
        continue_final_message=bool(body.get("continue_final_message")),
    )


def openai_responses(body: Json, templates: Templates) -> Chat:
    """A Responses request."""
    converted = responses_chat(body, templates.default)
    given = {"reasoning_effort": converted.reasoning_effort}
    given["chat_template_kwargs"] = body.get("chat_template_kwargs")
    kwargs, effort = _reasoning(given)
    return Chat(
        messages=converted.messages,
        tools=converted.tools,
        tool_choice=converted.tool_choice,
        kwargs=kwargs,
        reasoning_effort=effort,
    )


def anthropic_messages(body: Json, templates: Templates) -> Chat:
    """An Anthropic Messages request; its effort never reaches the thinking switches."""
    converted = anthropic_chat(body, templates.default)
    return Chat(
        messages=converted.messages,
        tools=converted.tools,
        tool_choice=converted.tool_choice,
        reasoning_effort=converted.reasoning_effort,
    )


READERS: Readers[Chat] = {
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic_messages": anthropic_messages,
}


@lru_cache(maxsize=256)
def content_format(template: TemplateTraits) -> str:
    """Whether SGLang hands this template content as parts ("openai") or as one "string"."""
    if any(word in template.source for word in MEDIA_WORDS):
        return "openai"
    return "openai" if LOOP_NAMES & template.content_loop_names else "string"


def _build(prompt: ChatPrompt, templates: Templates) -> TemplateCall:
    chat = read_request(prompt, templates, READERS)
    if not chat.messages:
        raise Unrenderable("malformed")
    tools = _tools(chat)
    template = templates.select(has_tools=tools is not None)
    parts = content_format(template) == "openai"
    messages = [_message(message, parts=parts) for message in chat.messages]
    messages, suffix = _open_end(messages, continued=chat.continue_final_message)
    effort = {} if chat.reasoning_effort is None else {"reasoning_effort": chat.reasoning_effort}
    return TemplateCall(
        messages=messages,
        tools=tools,
        kwargs=effort | chat.kwargs,
        suffix_text=suffix,
        flat_tools_retry=True,
    )


render = rendering(_build)


def _reasoning(body: Json) -> tuple[dict[str, Any], Any]:
    """Template variables and effort, after the thinking switches that an effort implies."""
    kwargs = template_kwargs(body)
    if {"add_generation_prompt", "continue_final_message", "documents"} & kwargs.keys():
        raise Unrenderable("template_kwargs")
    effort = body.get("reasoning_effort")
    given = body.get("reasoning")
    thinking: bool | None = None
    if isinstance(given, dict):
        chosen = given.get("effort")
        if chosen is None:
            chosen = given.get("reasoning_effort")
        if chosen is not None:
            effort = chosen
        enabled = given["enabled"] if given.get("enabled") is not None else given.get("enable")
        if isinstance(enabled, str):
            enabled = enabled.strip().lower() in SWITCHED_ON
        thinking = True if enabled else None
    if effort is not None:
        thinking = effort != "none"
    if thinking is not None:
        kwargs.setdefault("thinking", thinking)
        kwargs.setdefault("enable_thinking", thinking)
    return kwargs, effort


def _tools(chat: Chat) -> list[dict[str, Any]] | None:
    """The tools the template sees: none for tool_choice none, the named one, else all."""
    choice = chat.tool_choice
    if not chat.tools or choice == "none":
        return None
    tools = [_tool(tool) for tool in chat.tools]
    if isinstance(choice, dict):
        name = optional_object(choice, "function").get("name")
        tools = [tool for tool in tools if tool["function"]["name"] == name]
    return tools or None


def _tool(tool: Json) -> dict[str, Any]:
    """A tool as SGLang's model dumps it: the client's member order, then nulls for the rest."""
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Unrenderable("malformed")
    if not _has_standard_types(function.get("parameters")):
        raise Unrenderable("schema_types")  # SGLang rewrites database types; none of ours to guess
    deferred = tool.get("defer_loading")
    values = {name: function.get(name) for name in ("description", "name", "parameters")}
    for optional in ("strict", "defer_loading"):
        if function.get(optional) is not None:
            values[optional] = function[optional]
    if deferred is not None:
        values.setdefault("defer_loading", deferred)
    order = [*(name for name in function if name in values), *values]
    dumped = {name: values[name] for name in dict.fromkeys(order)}
    return {
        "type": tool.get("type", "function"),
        "function": dumped,
        "defer_loading": deferred,
    }


def _has_standard_types(schema: Any) -> bool:
    """Whether every ``type`` in a schema is one of JSON Schema's own."""
    if isinstance(schema, list):
        return all(_has_standard_types(item) for item in schema)
    if not isinstance(schema, dict):
        return True
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    odd = any(isinstance(name, str) and name not in JSON_TYPES for name in names)
    return not odd and all(_has_standard_types(value) for value in schema.values())


def _message(message: Json, *, parts: bool) -> Message:
    role = text_of(message.get("role"))
    if role == "user":
        kept: Message = {"role": role}
    else:
        role = role.lower()
        if role not in ROLES:
            raise Unrenderable("malformed")
        kept = {"role": role, **_members(message, role)}
    content = message.get("content")
    if content is None:
        kept["content"] = ""
    elif isinstance(content, str):
        kept["content"] = content
    else:
        items = [_part(part, role) for part in objects(content)]
        kept["content"] = _content([part for part in items if part], role, parts=parts)
    return kept


def _members(message: Json, role: str) -> Message:
    """What else of a message the template sees; nulls do not count as given."""
    if message.get("prefix"):
        raise Unrenderable("prefix")
    names = ("tool_call_id", "name", "phase", "reasoning_content")
    members = {name: message[name] for name in names if message.get(name) is not None}
    calls = optional_objects(message, "tool_calls")
    if calls is not None:
        members["tool_calls"] = [_tool_call(call, strict=role == "assistant") for call in calls]
    tools = optional_objects(message, "tools")
    if tools is not None:
        if tools and role in TOOL_ROLES:
            raise Unrenderable("message_tools")
        members["tools"] = [_tool(tool) for tool in tools]
    return members


def _tool_call(call: Json, *, strict: bool) -> dict[str, Any]:
    """A call as SGLang's model dumps it, an assistant's arguments as the object they spell."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise Unrenderable("malformed")
    arguments = function.get("arguments")
    if strict and isinstance(arguments, str):
        arguments = decoded_object(arguments)
        if arguments is None:
            raise Unrenderable("malformed")  # the engine refuses the request
    return {
        "id": call.get("id"),
        "index": call.get("index"),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def _part(part: Json, role: str) -> dict[str, Any] | None:
    """A part as templates get it; an assistant's thinking parts are left out."""
    if isinstance(part, MediaMark):
        return part.template_part
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": text_of(part.get("text"))}
    if kind == "tool_reference":
        return {"type": "tool_reference", "name": text_of(part.get("name"))}
    if kind in ("thinking", "reasoning") and role == "assistant":
        return None
    raise refuse_part(part)


def _content(items: list[dict[str, Any]], role: str, *, parts: bool) -> Any:
    texts = [item["text"] for item in items if item["type"] == "text"]
    only_text = len(texts) == len(items)
    if not parts or (role == "tool" and only_text):
        return " ".join(texts)
    return items


def _open_end(messages: list[Message], *, continued: bool) -> tuple[list[Message], str]:
    """Settle a final assistant message: a suffix where it is continued, else a user's."""
    last = messages[-1]
    if last["role"] != "assistant" or not isinstance(last["content"], str):
        return messages, ""
    if continued:
        return messages[:-1], last["content"]
    return [*messages[:-1], {"role": "user", "content": last["content"]}], ""
