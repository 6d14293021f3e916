"""Putting a text at the end of a request's system message: a point edit, whatever its shape.

Strings are lengthened before their closing quote and lists before their bracket, so every byte the
client wrote inside the edited value stays, and so does every other value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.dialects import wire
from gateway.types import ChatPrompt, ParsedRequest

_SYSTEM_ROLES = frozenset({"system", "developer"})
# Members that bind what the model may write: engines' own, and OpenAI's by their type.
_GRAMMARS = frozenset(
    {
        "ebnf", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex",
        "json_schema", "output_format", "regex", "structured_outputs",
    }
)  # fmt: skip

Change = Callable[[msgspec.Raw], msgspec.Raw]


def constrained(body: Mapping[str, Any]) -> bool:
    """Whether the answer is bound to a schema, a grammar or a choice."""
    if any(body.get(name) for name in _GRAMMARS):
        return True
    text = body.get("text")
    formats = (body.get("response_format"), text.get("format") if isinstance(text, dict) else None)
    return any(isinstance(each, dict) and each.get("type") != "text" for each in formats)


def end_system_member(
    request: ParsedRequest, name: str, text: str, kind: str
) -> ParsedRequest | None:
    """``text`` at the end of the top-level member that is the system message, or as that member.

    ``kind`` is the type of a text part where the message is a list of them. None where it is
    neither a string nor a list, or where the engine runs something else than the chat.
    """
    if not isinstance(request.prompt, ChatPrompt):
        return None
    given = request.body.get(name)
    if given is None:
        alone = text.lstrip()
        raw = wire.apply_edits(request.raw, {name: wire.encode(alone)}, request.body.keys())
        return _edited(request, raw, name, alone)
    longer = _longer(given, text, kind)
    if longer is None:
        return None
    value, change = longer
    return _edited(request, wire.edit_at(request.raw, (name,), change), name, value)


def end_system_turn(
    request: ParsedRequest, name: str, text: str, kind: str
) -> ParsedRequest | None:
    """The same for a list of turns whose first may be the system's; a new first one, if not."""
    if not isinstance(request.prompt, ChatPrompt):
        return None
    turns = request.body[name]
    if not has_system_turn(turns):
        turn = {"role": "system", "content": text.lstrip()}
        raw = wire.edit_at(request.raw, (name,), _in_front(turn, is_empty=not turns))
        return _edited(request, raw, name, [turn, *turns])
    longer = _longer(turns[0].get("content"), text, kind)
    if longer is None:
        return None
    value, change = longer
    raw = wire.edit_at(request.raw, (name, 0, "content"), change)
    return _edited(request, raw, name, [{**turns[0], "content": value}, *turns[1:]])


def has_system_turn(turns: Any) -> bool:
    """Whether a list of turns begins with the system's."""
    return bool(isinstance(turns, list) and turns and turns[0].get("role") in _SYSTEM_ROLES)


def _edited(request: ParsedRequest, raw: bytes, name: str, value: object) -> ParsedRequest:
    body = {**request.body, name: value}
    return replace(request, raw=bytes(raw), body=body, prompt=ChatPrompt(request.dialect, body))


def _longer(given: Any, text: str, kind: str) -> tuple[object, Change] | None:
    """A string or a list of parts with the text at its end: the value, and the bytes' change."""
    if isinstance(given, str):
        written = bytes(wire.encode(text))
        return given + text, lambda raw: msgspec.Raw(bytes(raw)[:-1] + written[1:])
    if isinstance(given, list):
        part = {"type": kind, "text": text}
        end = b"," * bool(given) + bytes(wire.encode(part)) + b"]"
        return [*given, part], lambda raw: msgspec.Raw(bytes(raw)[:-1] + end)
    return None


def _in_front(item: object, *, is_empty: bool) -> Change:
    begin = b"[" + bytes(wire.encode(item)) + b"," * (not is_empty)
    return lambda raw: msgspec.Raw(begin + bytes(raw)[1:])
