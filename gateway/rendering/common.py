"""What the engines' renderers share: facts about templates, and how a request is refused.

A renderer turns a request body into the ``TemplateCall`` its engine would make, or into an
``OpaquePrompt`` with a fixed reason word. Inside, helpers raise ``Unrenderable``; the one place
that turns it into a value is ``rendering``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

from gateway.types import ChatPrompt, OpaquePrompt, TemplateCall

Json = Mapping[str, Any]
Message = dict[str, Any]

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
MEDIA_PARTS: Mapping[str, str] = {
    "image": "image",
    "image_url": "image",
    "image_embeds": "image",
    "image_pil": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "audio_embeds": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "video_embeds": "video",
    "document": "file",
    "file": "file",
    "input_file": "file",
    "prompt_embeds": "embeds",
}
# What no template shows, and why it matters.
HIDDEN_INPUT: Mapping[str, str] = MappingProxyType(
    {
        "previous_response_id": "server_history",
        "conversation": "server_history",
        "previous_input_messages": "server_history",
        "session_params": "server_history",
        "prompt": "stored_prompt",
        "chat_template": "request_template",
        "truncate_prompt_tokens": "truncation",
        "input_ids": "input_ids",
        "input_embeds": "embeds",
        "prompt_embeds": "embeds",
    }
)
# Arguments of the template call itself. A request that sets one through chat_template_kwargs
# changes more than a template variable, each engine in its own way.
RESERVED_KWARGS = frozenset(
    {
        "conversation",
        "conversations",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


class Unrenderable(Exception):
    """This request cannot be rendered exactly. ``reason`` is a fixed word for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LateSystem(Enum):
    """What a template does with a system message that is not the first message."""

    RENDERED = "rendered"
    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What engines find out about a chat template at start, by looking at it or trying it.

    ``iterates_content``: some loop goes over a message's content, in whatever variable.
    ``content_loop_names``: the message variables whose ``content`` a loop names directly.
    ``obeys_effort_none``: reasoning effort "none" renders, and differently from all others.
    """

    source: str
    iterates_content: bool = False
    content_loop_names: frozenset[str] = frozenset()
    late_system: LateSystem = LateSystem.RENDERED
    obeys_effort_none: bool = False


@dataclass(frozen=True, slots=True)
class Templates:
    """A model's chat templates: the default one and, where there is one, that for tools."""

    default: TemplateTraits
    tool_use: TemplateTraits | None = None

    def select(self, *, has_tools: bool) -> TemplateTraits:
        """The template transformers would take."""
        return self.tool_use if has_tools and self.tool_use is not None else self.default


T = TypeVar("T")
Readers = Mapping[str, Callable[[Json, Templates], T]]
Render = Callable[[ChatPrompt, Templates], TemplateCall | OpaquePrompt]


def rendering(build: Callable[[ChatPrompt, Templates], TemplateCall]) -> Render:
    """Make a renderer of a function that raises ``Unrenderable``."""

    def render(prompt: ChatPrompt, templates: Templates) -> TemplateCall | OpaquePrompt:
        try:
            return build(prompt, templates)
        except Unrenderable as error:
            return OpaquePrompt(error.reason)

    return render


def read_request(prompt: ChatPrompt, templates: Templates, readers: Readers[T]) -> T:
    """The request as its dialect's reader sees it.

    Raises:
        Unrenderable: no reader, hidden input, or what the reader raises.
    """
    read = readers.get(prompt.dialect)
    if read is None:
        raise Unrenderable("unknown_dialect")
    refuse_hidden_input(prompt.body)
    return read(prompt.body, templates)


def refuse_hidden_input(body: Json) -> None:
    """Refuse what no template shows: server-side history, truncation, ids and embeddings.

    Raises:
        Unrenderable: with the reason.
    """
    if not body.keys().isdisjoint(HIDDEN_INPUT):
        for field, reason in HIDDEN_INPUT.items():
            if body.get(field) is not None:
                raise Unrenderable(reason)
    transfer = body.get("kv_transfer_params")
    if isinstance(transfer, Mapping) and transfer.get("prompt_token_ids") is not None:
        raise Unrenderable("input_ids")


def template_kwargs(body: Json) -> dict[str, Any]:
    """The request's ``chat_template_kwargs``, a copy.

    Raises:
        Unrenderable: it brings a template, or touches the call rather than the template.
    """
    kwargs = optional_object(body, "chat_template_kwargs")
    if kwargs.get("chat_template") is not None:
        raise Unrenderable("request_template")
    if RESERVED_KWARGS & kwargs.keys():
        raise Unrenderable("template_kwargs")
    return {key: value for key, value in kwargs.items() if key != "chat_template"}


def objects(value: Any) -> list[dict[str, Any]]:
    """``value`` as a list of JSON objects.

    Raises:
        Unrenderable: it is something else; the engine will refuse it too.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise Unrenderable("malformed")
    if not all(isinstance(item, dict) for item in value):
        raise Unrenderable("malformed")
    return list(value)


def optional_objects(body: Json, field: str) -> list[dict[str, Any]] | None:
    """A member that is a list of objects, or absent."""
    value = body.get(field)
    return None if value is None else objects(value)


def optional_object(body: Json, field: str) -> dict[str, Any]:
    """A member that is an object; empty where it is absent or null."""
    value = body.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unrenderable("malformed")
    return value


def text_of(value: Any) -> str:
    """``value`` as the string it must be.

    Raises:
        Unrenderable: it is something else.
    """
    if not isinstance(value, str):
        raise Unrenderable("malformed")
    return value


def refuse_part(part: Json) -> Unrenderable:
    """Why a content part that is no text cannot be rendered."""
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        return Unrenderable(MEDIA_PARTS[kind])
    for key, reason in MEDIA_PARTS.items():
        if key in part:
            return Unrenderable(reason)
    return Unrenderable("unknown_part")


def decoded_object(text: str) -> dict[str, Any] | None:
    """The JSON object in ``text``, or None where there is none."""
    try:
        value = json.loads(text)  # not msgspec: engines' own parsers take NaN too
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def function_tool(name: Any, fields: Json) -> dict[str, Any]:
    """A function as OpenAI's chat shape spells it, with the two members templates always see."""
    function: dict[str, Any] = {
        "name": text_of(name),
        "description": fields.get("description"),
        "parameters": fields.get("parameters"),
    }
    for optional in ("strict", "defer_loading"):
        if fields.get(optional) is not None:
            function[optional] = fields[optional]
    return function


def custom_tool_parameters() -> dict[str, Any]:
    """The schema both vLLM and SGLang give a Responses ``custom`` tool: one string."""
    return {
        "type": "object",
        "properties": {
            "input": {"type": "string", "description": "The freeform text payload for this tool."}
        },
        "required": ["input"],
        "additionalProperties": False,
    }
