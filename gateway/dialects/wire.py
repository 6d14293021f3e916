"""JSON as it travels: bodies read strictly, single fields checked, members edited in place.

Strict means RFC 8259 in UTF-8 and nothing besides: no BOM, no NaN, no number a double cannot
hold, no half of a surrogate pair. Whatever an engine's lenient parser might read differently from
ours must not reach it, since what was counted has to be what is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from gateway.dialects import unambiguous
from gateway.dialects.unambiguous import Fault
from gateway.errors import Kind, Rejection

Edits = Mapping[str, msgspec.Raw | None]
Pieces = tuple[bytes | memoryview, ...]  # of a body, one after another

INT64_MAX = 2**63 - 1

_MOST_BYTES_EXPLAINED = 2**20  # finding the field at fault costs more than reading a good body
_LONGEST_NAME = 64  # of a client's own field name repeated in a message
_TOO_DEEP = (
    f"The request body is nested deeper than {unambiguous.MOST_NESTED} levels, or holds over "
    f"{unambiguous.MOST_HELD} objects and lists."
)
_BOM = b"\xef\xbb\xbf"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_anything = msgspec.json.Decoder()

# An escaped surrogate without its other half. The first group is an even run of backslashes, so
# that an escaped backslash before "ud800" is not taken for an escape.
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)((?:\\\\)*)\\u"
    rb"(?:[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)
_MARK = rb"\uffff"  # a noncharacter: stands in for what was refused, to find its field


def malformed(message: str, param: str | None = None) -> Rejection:
    """The refusal of a request that cannot be understood."""
    return Rejection(Kind.MALFORMED, message, param=param)


# --- reading ----------------------------------------------------------------------------------


def decode_object(raw: bytes) -> dict[str, Any]:
    """A request body as a dict, no name of it repeated at any depth.

    Raises ``Rejection`` (MALFORMED), with the member at fault where it can be told.
    """
    try:
        body = _anything.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _explain(raw, error) from None
    if not isinstance(body, dict):
        raise malformed("The request body must be a JSON object.")
    fault = unambiguous.fault_of(raw, body)
    if fault is Fault.OVERGROWN:
        raise malformed(_TOO_DEEP)
    if fault is Fault.REPEATS:
        raise _repeats(raw)
    return body


def _repeats(raw: bytes) -> Rejection:
    name = unambiguous.repeated_name(raw) if len(raw) <= _MOST_BYTES_EXPLAINED else None
    if name is None or not _is_tellable(name):
        return malformed("The request body holds a field twice in one object.")
    return malformed(f"The field '{name}' is there twice in one object.", name)


def _explain(raw: bytes, error: Exception) -> Rejection:
    if isinstance(error, RecursionError):
        return malformed(_TOO_DEEP)
    if raw.startswith(_BOM):
        return malformed("The request body must not begin with a byte order mark.")
    if not raw.strip():
        return malformed("The request body is empty; a JSON object is needed.")
    if len(raw) > _MOST_BYTES_EXPLAINED:
        return malformed(f"The request body is not valid JSON: {error}.")
    mended, surrogates = _LONE_SURROGATE.subn(lambda found: found[1] + _MARK, raw)
    param = _member_at_fault(mended if surrogates else raw)
    where = f"field '{param}'" if param else "request body"
    if surrogates:
        return malformed(f"The {where} holds half of a UTF-16 surrogate pair.", param)
    return malformed(f"The {where} is not valid JSON: {error}.", param)


def _member_at_fault(raw: bytes) -> str | None:
    try:
        members = _members.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return next((name for name, value in members.items() if _is_at_fault(name, value)), None)


def _is_at_fault(name: str, value: msgspec.Raw) -> bool:
    if not _is_tellable(name):
        return False
    try:
        _anything.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return True
    return _MARK in bytes(value)


def _is_tellable(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and name.isprintable()


def decode_lenient(raw: bytes, names: Iterable[str]) -> Any:
    """An engine's JSON, without its opinion on it: only ``names`` of an object are decoded.

    Values nobody asked for are skipped over, not built. What strict JSON refuses but engines
    write (NaN among logprobs) is read too. None where it is no JSON at all.
    """
    try:
        members = _members.decode(raw)
        return {name: _anything.decode(members[name]) for name in names if name in members}
    except (msgspec.DecodeError, RecursionError):
        return _decode_loosely(raw)


def decode_any(raw: bytes) -> Any:
    """An engine's JSON with all its members, read as leniently; None where it is no JSON."""
    try:
        return _anything.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return _decode_loosely(raw)


def _decode_loosely(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


# --- single fields ----------------------------------------------------------------------------


def _wrong(name: str, needed: str) -> NoReturn:
    raise malformed(f"The field '{name}' must be {needed}.", name)


def required_name(body: Mapping[str, Any], name: str) -> str:
    """A string that must be there and not be empty."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        _wrong(name, "a non-empty string")
    return value


def flag(body: Mapping[str, Any], name: str, prefix: str = "") -> bool | None:
    """A boolean; null counts as absent. ``prefix`` is the path to ``body``, for the message."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        _wrong(prefix + name, "true, false or null")
    return value


def whole_number(
    body: Mapping[str, Any], name: str, *, least: int = 0, prefix: str = ""
) -> int | None:
    """A 64-bit integer of at least ``least``; null counts as absent, 1e3 and true do not pass."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= INT64_MAX:
        _wrong(prefix + name, f"an integer from {least} to {INT64_MAX}")
    return value


def nested(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object; null and absent are an empty one."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        _wrong(name, "an object or null")
    return value


def objects(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects that must be there; it may be empty."""
    value = body.get(name)
    if not isinstance(value, list):
        _wrong(name, "a list")
    for place, item in enumerate(value):
        if not isinstance(item, dict):
            _wrong(f"{name}[{place}]", "an object")
    return value


# --- writing ----------------------------------------------------------------------------------


def encode(value: object) -> msgspec.Raw:
    """A value as the raw JSON an edit takes."""
    return msgspec.Raw(msgspec.json.encode(value))


def edit_at(
    raw: bytes | msgspec.Raw,
    path: Sequence[str | int],
    change: Callable[[msgspec.Raw], msgspec.Raw],
) -> msgspec.Raw:
    """``raw`` with the value at ``path`` changed; all other values keep their bytes and order.

    Raises ``msgspec.DecodeError`` where ``raw`` is no strict JSON, ``LookupError`` or
    ``TypeError`` where it has no such place.
    """
    if not path:
        return change(msgspec.Raw(raw))
    head, *rest = path
    if isinstance(head, int):
        items = _items.decode(raw)
        items[head] = edit_at(items[head], rest, change)
        return msgspec.Raw(b"[" + b",".join(items) + b"]")
    members = _members.decode(raw)
    members[head] = edit_at(members[head], rest, change)
    return msgspec.Raw(_object(members))


def apply_edits(raw: bytes, edits: Edits, known: KeysView[str] | None = None) -> bytes:
    """``raw``, a JSON object, with top-level members set or (None) dropped.

    Members that no edit names keep their bytes and order. Where nothing changes the very same
    object comes back, so applying edits twice is applying them once. ``known`` are the names of
    the members, where they were decoded already: new ones then go in front, unparsed.
    """
    return b"".join(edited(raw, edits, known))


def edited(raw: bytes, edits: Edits, known: KeysView[str] | None = None) -> Pieces:
    """What ``apply_edits`` gives, in pieces: where members only go in front, nothing is copied."""
    if not edits:
        return (raw,)
    if known and known.isdisjoint(edits):
        return _with_in_front(raw, edits)
    members = _members.decode(raw)
    changed = False
    for name, value in edits.items():
        present = members.get(name)
        if value is None:
            changed |= members.pop(name, None) is not None
        elif present is None or bytes(present) != bytes(value):
            members[name] = value
            changed = True
    return (_object(members) if changed else raw,)


def _object(members: Mapping[str, msgspec.Raw]) -> bytes:
    parts: list[bytes | msgspec.Raw] = []
    for name, value in members.items():
        parts += (b"," if parts else b"{", msgspec.json.encode(name), b":", value)
    return b"".join((*parts, b"}" if parts else b"{}"))


def _with_in_front(raw: bytes, edits: Edits) -> Pieces:
    """Members added behind the opening brace of an object that has others, without parsing."""
    added = [
        msgspec.json.encode(name) + b":" + bytes(value) + b","
        for name, value in edits.items()
        if value is not None
    ]
    if not added:
        return (raw,)
    begin = raw.index(b"{") + 1
    return b"".join((raw[:begin], *added)), memoryview(raw)[begin:]
