"""How llama.cpp's server turns a request into chat template input (build 11434, pinned by tests).

It has its own template engine, and handlers of their own for some models' templates. What those
touch (tools, calls, reasoning) is opaque unless the template is one that its general code renders
as it stands; plain chats are rendered as any other engine would. Messages and Responses requests
become chat requests first (``llama_cpp_anthropic``, ``llama_cpp_responses``).

A final assistant message is continued: all before it is rendered with a generation prompt, then
comes the message's own text, tokenised with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.rendering.common import (
    Json,
    Message,
    Readers,
    Templates,
    TemplateTraits,
    Unrenderable,
    objects,
    optional_object,
    optional_objects,
    read_request,
    refuse_part,
    rendering,
    template_kwargs,
    text_of,
)
from gateway.rendering.llama_cpp_anthropic import anthropic_chat
from gateway.rendering.llama_cpp_json import as_printed, parsed
from gateway.rendering.llama_cpp_responses import responses_chat
from gateway.types import ChatPrompt, TemplateCall

READERS: Readers[Json] = {
    "openai_chat": lambda body, _templates: body,
    "openai_responses": lambda body, _templates: responses_chat(body),
    "anthropic_messages": lambda body, _templates: anthropic_chat(body),
}
# Templates it renders by code of its own, or alters the messages for, by what it looks for in
# them: all marks of an entry (common/chat.cpp, common_chat_try_specialized_template).
SPECIALISED = (
    ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"),
    ("chat_format=llm-jp-harmony-v1",),
    ("<|channel|>",),
    ("<atem:function_calls>", "<|eom|>"),
    (">>>all", ">>>${recipient}"),
    ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    ("<|open|>", "<|close|>", "<|end_of_msg|>"),
    ("<role>ASSISTANT</role>", "<arg_key>"),
    ("<|START_TEXT|>", "<|START_ACTION|>"),
    ("<|tool_list_start|>",),
    ("List of tools: [",),
    ("<|role_sep|>", "<|message_sep|>"),
    ("]<]minimax[>[", "<tool_call>"),
    ("dsml_token", "DSML"),
    ("'<|tool_call>call:'",),
    ("Tool usage guidelines:", '<function name="'),
    ("<tool_call>", "<function=", "<parameter="),
    ("You have access to the following functions in JSONSchema format",),
)
# How its general code finds that a template wants a call's arguments as an object.
OBJECT_ARGUMENTS = "arguments | tojson"
# Qwen3's way to write an assistant's reasoning, and what is found to begin and end it.
THINK_BLOCK = r"'\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n'"
THINK_START, THINK_END = "<think>\n", "\n</think>\n\n"
# Variables that the server fills in from its clock.
CLOCK = ("date_string", "datetime")
CONTENT, REASONING = "content", "reasoning_content"


def _build(prompt: ChatPrompt, templates: Templates) -> TemplateCall:
    body = read_request(prompt, templates, READERS)
    tools = [_tool(tool) for tool in optional_objects(body, "tools") or []] or None
    template = templates.select(has_tools=tools is not None)
    messages = [_message(message) for message in objects(body.get("messages"))]
    if not messages:
        raise Unrenderable("engine_rendering")
    _refuse_own_handling(messages, tools, template)
    mode = _continuation(body, messages)
    if mode is not None:
        return _continued(messages, mode, tools, template, _variables(body))
    return TemplateCall(
        messages=_as_rendered(messages),
        tools=tools,
        add_generation_prompt=body.get("add_generation_prompt") is not False,
        kwargs=_variables(body),
        add_special_tokens=_adds_special(template),
    )


render = rendering(_build)


def _refuse_own_handling(messages: list[Message], tools: object, template: TemplateTraits) -> None:
    """Refuse what the server treats in a way of its own with this template."""
    source = template.source
    if any(name in source for name in CLOCK):
        raise Unrenderable("server_clock")
    if messages[0]["role"] == "system" and "system" not in source:
        raise Unrenderable("engine_rendering")  # it merges the text into the next message
    if template.iterates_content and any(isinstance(m["content"], list) for m in messages):
        raise Unrenderable("engine_rendering")
    plain = tools is None and not any({"tool_calls", REASONING} & m.keys() for m in messages)
    if plain and all(message["role"] != "tool" for message in messages):
        return
    if OBJECT_ARGUMENTS not in source or template.iterates_content:
        raise Unrenderable("engine_rendering")
    if any(all(mark in source for mark in marks) for marks in SPECIALISED):
        raise Unrenderable("engine_rendering")


def _variables(body: Json) -> dict[str, Any]:
    """The template's variables; ``chat_template_kwargs`` win, also over what effort implies."""
    kwargs = template_kwargs(body)
    if kwargs.keys() & {"add_generation_prompt", "bos_token", "eos_token", "preserve_reasoning"}:
        raise Unrenderable("template_kwargs")
    if isinstance(kwargs.get("enable_thinking"), str):
        raise Unrenderable("malformed")
    effort = body.get("reasoning_effort")
    if effort == "none":
        kwargs.pop("reasoning_effort", None)
        return {"enable_thinking": False} | kwargs
    if isinstance(effort, str) and effort:
        kwargs["reasoning_effort"] = effort
    effort = kwargs.get("reasoning_effort")
    strength = {"reasoning_strength": effort} if isinstance(effort, str) else {}
    return {"enable_thinking": True} | strength | kwargs


def _adds_special(template: TemplateTraits) -> bool:
    """A BOS is added as the model wants it, once: not where the template writes it."""
    return "bos_token" not in template.source


# --- messages ---------------------------------------------------------------------------------


def _message(message: Json) -> Message:
    """A message as the server keeps it: known members, and none that is empty."""
    kept: Message = {"role": text_of(message.get("role")), "content": _content(message)}
    for name in (REASONING, "name", "tool_call_id"):
        if name in message and text_of(message[name]):
            kept[name] = message[name]
    calls = [_tool_call(call) for call in objects(message.get("tool_calls") or [])]
    if calls:
        kept["tool_calls"] = calls
    if kept["role"] == "developer":
        kept["role"] = "system"
    return kept


def _content(message: Json) -> str | list[str]:
    """Content, parts as the list of their texts."""
    if "content" not in message and "tool_calls" not in message:
        raise Unrenderable("malformed")
    content = message.get("content")
    if content is None:
        return ""
    return content if isinstance(content, str) else [_text(part) for part in objects(content)]


def _text(part: Json) -> str:
    if part.get("type") != "text":
        raise refuse_part(part)
    return text_of(part.get("text"))


def _joined(content: str | list[str], separator: str) -> str:
    """Parts joined; empty ones at the start leave no separator."""
    if isinstance(content, str):
        return content
    joined = ""
    for text in content:
        joined += (separator if joined else "") + text
    return joined


def _as_rendered(messages: list[Message]) -> list[Message]:
    return [{**message, "content": _joined(message["content"], "\n")} for message in messages]


def _tool_call(call: Json) -> dict[str, Any]:
    function = call.get("function")
    if call.get("type") != "function" or not isinstance(function, Mapping):
        raise Unrenderable("malformed")
    if "arguments" not in function:
        raise Unrenderable("malformed")
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = parsed(arguments)
    called = {"name": text_of(function.get("name")), "arguments": as_printed(arguments)}
    known = {"id": text_of(call["id"])} if call.get("id") else {}
    return {"type": "function", "function": called, **known}


def _tool(tool: Json) -> dict[str, Any]:
    """A tool: name, description and parameters, always all three and in this order."""
    function = optional_object(tool, "function")
    if tool.get("type") != "function":
        raise Unrenderable("malformed")
    described = {
        "name": text_of(function.get("name")),
        "description": text_of(function.get("description", "")),
        "parameters": as_printed(function.get("parameters", {})),
    }
    return {"type": "function", "function": described}


# --- a final message that is continued --------------------------------------------------------


def _continuation(body: Json, messages: list[Message]) -> str | None:
    """Whether the last message is continued, and in its content or its reasoning."""
    asked = body.get("continue_final_message")
    last = messages[-1]
    continues = asked is True or asked in (CONTENT, REASONING)
    if continues and body.get("add_generation_prompt") is not False:
        raise Unrenderable("malformed")
    if not continues and last["role"] != "assistant":
        return None
    if "tool_calls" in last and last["role"] == "assistant":
        raise Unrenderable("malformed")
    if not continues and len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise Unrenderable("malformed")
    if asked in (CONTENT, REASONING):
        return str(asked)
    return REASONING if REASONING in last and not last["content"] else CONTENT


def _continued(
    messages: list[Message],
    mode: str,
    tools: list[dict[str, Any]] | None,
    template: TemplateTraits,
    variables: dict[str, Any],
) -> TemplateCall:
    *before, last = messages
    if not before or THINK_BLOCK not in template.source:
        raise Unrenderable("engine_rendering")
    says_something = any(value for name, value in last.items() if name != "role")
    tail = THINK_START + last.get(REASONING, "")
    if mode == CONTENT:
        tail += THINK_END + _joined(last["content"], "\n\n")
    return TemplateCall(
        messages=_as_rendered(before),
        tools=tools,
        add_generation_prompt=says_something,
        # Its generation prompt is cut where a think block begins, so none may be written.
        kwargs=variables | {"enable_thinking": True},
        add_special_tokens=_adds_special(template),
        tail=tail if says_something else "",
    )
