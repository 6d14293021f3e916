"""How vLLM turns a request into chat template input (facts read from 0.32.0, pinned by tests).

Chat messages are reduced to role, content and a few members; content parts are joined with
newlines, unless the template loops over content, when they stay parts. Responses and Anthropic
requests become chat messages first (``vllm_responses``, ``vllm_anthropic``). Settings of the
server that requests do not show (default template kwargs, another template, a content format
forced by flag) are not known here: the check of usage finds those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from gateway.rendering.common import (
    TEXT_PARTS,
    Json,
    Message,
    Readers,
    Templates,
    TemplateTraits,
    Unrenderable,
    decoded_object,
    function_tool,
    objects,
    optional_objects,
    read_request,
    refuse_part,
    rendering,
    template_kwargs,
    text_of,
)
from gateway.rendering.media import STAND_IN, MediaMark
from gateway.rendering.vllm_anthropic import BILLING_HEADER, anthropic_chat
from gateway.rendering.vllm_responses import responses_chat
from gateway.types import ChatPrompt, TemplateCall

# Members of content parts that vLLM's own types know; others travel on to the template.
KNOWN_PART_FIELDS = frozenset(
    {
        "audio_embeds",
        "audio_url",
        "closed",
        "data",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "name",
        "prompt_cache_breakpoint",
        "refusal",
        "text",
        "thinking",
        "type",
        "uuid",
        "video_embeds",
        "video_url",
    }
)
# The member that holds a text part's text.
TEXT_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(TEXT_PARTS, "text"),
    "refusal": "refusal",
    "thinking": "thinking",
}


class Chat(Struct, frozen=True):
    """A request as vLLM's chat completion handler sees it, whatever its dialect was."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


def openai_chat(body: Json, _templates: Templates) -> Chat:
    """A chat completion request as it stands."""
    tools = optional_objects(body, "tools")
    generation = body.get("add_generation_prompt")
    return Chat(
        messages=[dict(message) for message in objects(body.get("messages"))],
        tools=None if tools is None else [_chat_tool(tool) for tool in tools],
        documents=optional_objects(body, "documents"),
        kwargs=template_kwargs(body),
        reasoning_effort=body.get("reasoning_effort"),
        add_generation_prompt=generation is not False,
        continue_final_message=bool(body.get("continue_final_message")),
        add_special_tokens=bool(body.get("add_special_tokens")),
    )


def openai_responses(body: Json, _templates: Templates) -> Chat:
    """A Responses request."""
    if body.get("truncation", "disabled") != "disabled":
        raise Unrenderable("truncation")
    converted = responses_chat(body)
    return Chat(
        messages=converted.messages,
        tools=converted.tools,
        kwargs=template_kwargs(body),
        reasoning_effort=converted.reasoning_effort,
        add_generation_prompt=not converted.unfinished,
        continue_final_message=converted.unfinished,
        add_special_tokens=True,  # this handler leaves the tokeniser's default on
    )


def anthropic_messages(body: Json, templates: Templates) -> Chat:
    """An Anthropic Messages request."""
    converted = anthropic_chat(body, templates.default)
    return Chat(
        messages=converted.messages,
        tools=converted.tools,
        kwargs=template_kwargs(body),
        reasoning_effort=converted.reasoning_effort,
    )


READERS: Readers[Chat] = {
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic_messages": anthropic_messages,
}


def _build(prompt: ChatPrompt, templates: Templates) -> TemplateCall:
    chat = read_request(prompt, templates, READERS)
    if not chat.messages or (chat.add_generation_prompt and chat.continue_final_message):
        raise Unrenderable("malformed")
    template = templates.select(has_tools=chat.tools is not None)
    if "<|channel|>" in template.source and "<|message|>" in template.source:
        raise Unrenderable("harmony")  # vLLM renders gpt-oss with code, not with this template
    return TemplateCall(
        messages=_conversation(chat.messages, template),
        tools=chat.tools,
        documents=chat.documents if chat.documents is not None else chat.kwargs.get("documents"),
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        kwargs=_variables(chat),
        add_special_tokens=chat.add_special_tokens,
    )


render = rendering(_build)


def _variables(chat: Chat) -> dict[str, Any]:
    """The request's template variables; effort switches thinking on or off where it is not set."""
    own = {"documents", "add_generation_prompt", "continue_final_message"}
    variables = {key: value for key, value in chat.kwargs.items() if key not in own}
    if chat.reasoning_effort is not None:
        variables.setdefault("enable_thinking", chat.reasoning_effort != "none")
        variables["reasoning_effort"] = chat.reasoning_effort
    return variables


def _chat_tool(tool: Json) -> dict[str, Any]:
    """A tool as vLLM's model dumps it: known members only, null description and parameters."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise Unrenderable("malformed")
    deferred = tool.get("defer_loading")
    if deferred is not None and function.get("defer_loading") is None:
        function = {**function, "defer_loading": deferred}
    outer = {} if deferred is None else {"defer_loading": deferred}
    return {"type": "function", "function": function_tool(function.get("name"), function), **outer}


def _conversation(messages: list[Message], template: TemplateTraits) -> list[Message]:
    conversation = [_message(message, parts=template.iterates_content) for message in messages]
    speaks_developer = '"developer"' in template.source or "'developer'" in template.source
    if speaks_developer or all(message["role"] != "developer" for message in conversation):
        return conversation
    return _one_system([_as_system(message) for message in conversation])


def _message(message: Message, *, parts: bool) -> Message:
    role = text_of(message.get("role"))
    content = message.get("content")
    items = [content] if isinstance(content, str) else _part_list(content)
    if role == "system":
        items = [kept for item in items if (kept := _without_billing(item)) is not None]
    result: Message = {"role": role, "content": _content(items, parts=parts)}
    if role == "assistant":
        result.update(_assistant_members(message))
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        result["content"] = _tool_content(result["content"])
    elif role == "developer":
        result["tools"] = message.get("tools")
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    return result


def _part_list(content: Any) -> list[Any]:
    if content is None:
        return []
    return list(objects(content))


def _content(items: list[Any], *, parts: bool) -> str | list[dict[str, Any]]:
    converted = [_part(item, as_part=parts) for item in items]
    if parts:
        return [part for part in converted if isinstance(part, dict)]
    return "\n".join(part for part in converted if part and isinstance(part, str))


def _part(item: Any, *, as_part: bool) -> str | dict[str, Any]:
    """One content part: its text, or a normalised part for templates that loop over them."""
    if isinstance(item, str):
        return {"type": "text", "text": item} if as_part else item
    if isinstance(item, MediaMark):
        return item.template_part if as_part else STAND_IN
    kind = item.get("type")
    if item.get("uuid") is not None or not isinstance(kind, str):
        raise refuse_part(item)
    if kind == "tool_reference":
        name = text_of(item.get("name"))
        return {"type": "tool_reference", "name": name} if as_part else name
    if kind not in TEXT_FIELDS:
        raise refuse_part(item)
    text = text_of(item.get(TEXT_FIELDS[kind]))
    if not as_part:
        return text
    extra = {key: value for key, value in item.items() if key not in KNOWN_PART_FIELDS}
    return {"type": "text", "text": text, **extra}


def _without_billing(item: Any) -> Any:
    """A system part without Claude Code's first line, which changes with every request."""
    is_text = isinstance(item, Mapping) and item.get("type") == "text"
    text = item if isinstance(item, str) else item.get("text") if is_text else None
    if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
        return item
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if isinstance(item, str) else {**item, "text": rest}


def _assistant_members(message: Message) -> Message:
    members: Message = {}
    calls = message.get("tool_calls")
    if calls is not None and (calls := objects(calls)):
        members["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        members["reasoning"] = members["reasoning_content"] = reasoning
    return members


def _tool_call(call: Json) -> dict[str, Any]:
    """A call with its arguments as an object; what is no object becomes an empty one."""
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise Unrenderable("malformed")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = decoded_object(arguments) if arguments else {}
    if not isinstance(arguments, dict):
        arguments = {}
    # vLLM's types put known members first, and templates may print the whole object.
    ordered = {"arguments": arguments, "name": function.get("name"), **function}
    ordered["arguments"] = arguments
    head = {"id": call["id"]} if "id" in call else {}
    return {**head, "function": ordered, "type": "function"} | {
        key: value for key, value in call.items() if key not in ("id", "function", "type")
    }


def _tool_content(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Tool results are one string, unless they hold references the template expands."""
    if isinstance(content, str) or any(part.get("type") != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _one_system(messages: list[Message]) -> list[Message]:
    """All system messages as one at the front, where one is not the first already."""
    system = [index for index, message in enumerate(messages) if message["role"] == "system"]
    if system == [0]:
        return messages
    texts = [_joined(messages[index]["content"]) for index in system]
    merged = "\n\n".join(text for text in texts if text)
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": merged}, *others]


def _joined(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
