"""JSON that every parser reads alike: each name once in its object, and not nested without end.

Of a name written twice the parsers of Python, llama.cpp and Go take the last value, other ones the
first, and Go's merges objects. What was counted has to be what is run, so neither may pass.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any, Final

import msgspec

MOST_NESTED = 100  # objects and lists inside each other; schemas of tools reach twenty or so
MOST_HELD = 50_000  # objects and lists altogether: a long conversation with tools has thousands

_SHORT = 2**16  # bytes; in longer bodies, mostly of text, objects are fewer than bytes to look at
_MANY_QUOTES = 2**20  # to split at so many, in megabytes of empty strings, would take much memory
_CONTAINERS: Final = frozenset[type]({dict, list})
# A string, escapes taken out before, with the colon that makes it a name.
_STRING = re.compile(rb'"[^"]*"([ \t\r\n]*:)?')


def repeats_a_name(raw: bytes, body: dict[str, Any]) -> bool:
    """Whether an object in ``raw``, of which ``body`` was decoded, holds a name twice.

    Sound: what was decoded has no repeated name, so neither has ``raw`` where encoding it again
    gives the same bytes, compact or spaced as most clients do, or where both have as many names.
    """
    again = msgspec.json.encode(body)
    if again == raw or (len(raw) <= _SHORT and msgspec.json.format(again, indent=0) == raw):
        return False
    return _names_in(raw) != _names_in(again)


def is_overgrown(raw: bytes, body: dict[str, Any]) -> bool:
    """Whether over ``MOST_NESTED`` objects and lists are inside each other, ``body`` among them.

    Or over ``MOST_HELD`` are anywhere: looking at each would keep others waiting.
    """
    if len(raw) <= _SHORT and raw.count(b"{") + raw.count(b"[") <= MOST_NESTED:
        return False
    depth = held = 0
    level: list[Any] = [body]
    while level:
        depth, held = depth + 1, held + len(level)
        if depth > MOST_NESTED or held > MOST_HELD:
            return True
        level = _inside(level)
    return False


def repeated_name(raw: bytes) -> str | None:
    """The first name that its object holds twice, as decoded. Slow: only for refusals."""
    found: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                found.append(name)
            seen.add(name)

    json.loads(raw, object_pairs_hook=look)
    return found[0] if found else None


def _names_in(raw: bytes) -> int:
    """How many names the objects of valid JSON hold, repeated ones as often as they are there."""
    if b"\\" in raw:  # escaped quotes end no string; escaped backslashes escape no quote
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if raw.count(b'"') < _MANY_QUOTES:
        return b"".join(raw.split(b'"')[::2]).count(b":")  # outside strings, a colon ends a name
    return sum(1 for string in _STRING.finditer(raw) if string.lastindex)


def _inside(level: list[Any]) -> list[Any]:
    """The objects and lists that are members or items of these."""
    objects = [value for value in level if type(value) is dict]
    lists = [value for value in level if type(value) is list]
    # Millions of token ids hold nothing: their types say so faster than they do one by one.
    holding = [each for each in lists if not _CONTAINERS.isdisjoint(map(type, each))]
    values = chain(chain.from_iterable(map(dict.values, objects)), *holding)
    return [value for value in values if type(value) in _CONTAINERS]
