"""JSON that every parser reads alike: each name once in its object, and not nested without end.

Of a name written twice the parsers of Python, llama.cpp and Go take the last value, other ones the
first, and Go's merges objects. What was counted has to be what is run, so neither may pass.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

MOST_NESTED = 100  # objects and lists inside each other; schemas of tools reach twenty or so
MOST_HELD = 50_000  # objects and lists altogether: a long conversation with tools has thousands

_SHORT = 2**16  # bytes; in longer bodies, mostly of text, objects are fewer than bytes to look at
_MANY_QUOTES = 2**20  # to note where so many are, in megabytes of empty strings, takes much memory
_MANY_SLASHES = 32  # in a row; more are not text
_CONTAINERS: Final = frozenset[type]({dict, list})
_COLON = re.compile(rb"[ \t\r\n]*:")
# A string, escapes taken out before, with the colon that makes it a name.
_STRING = re.compile(rb'"[^"]*"([ \t\r\n]*:)?')


class Fault(Enum):
    """Why a body is not read alike by all."""

    OVERGROWN = "overgrown"
    REPEATS = "repeats"


def fault_of(raw: bytes, body: dict[str, Any]) -> Fault | None:
    """What is wrong with ``raw``, of which ``body`` was decoded; None: nothing.

    Overgrown: over ``MOST_NESTED`` objects and lists inside each other, ``body`` among them, or
    over ``MOST_HELD`` anywhere (looking at each would keep others waiting). Repeats: an object
    holds a name twice. Sound: what was decoded has no repeated name, so neither has ``raw`` where
    encoding it again gives the same bytes, or where both have as many names.
    """
    if _is_small_and_comes_back(raw, body):
        return None
    depth = held = names = 0
    level: list[Any] = [body]
    while level:
        depth, held = depth + 1, held + len(level)
        if depth > MOST_NESTED or held > MOST_HELD:
            return Fault.OVERGROWN
        names += sum(len(value) for value in level if type(value) is dict)
        level = _inside(level)
    return Fault.REPEATS if names != _names_in(raw) else None


def _is_small_and_comes_back(raw: bytes, body: dict[str, Any]) -> bool:
    """Whether it has few objects and is spelt as clients do: most are, and this is the quickest."""
    if len(raw) > _SHORT or raw.count(b"{") + raw.count(b"[") > MOST_NESTED:
        return False
    again = msgspec.json.encode(body)
    return again == raw or msgspec.json.format(again, indent=0) == raw


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
    """How many names the objects of valid JSON hold, repeated ones as often as they are there.

    A name is a string with a colon after it. About 0.2 ms a megabyte of text.
    """
    data = np.frombuffer(raw, np.uint8)
    is_quote = data == ord('"')
    if len(raw) >= _MANY_QUOTES and np.count_nonzero(is_quote) >= _MANY_QUOTES:
        plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
        return sum(1 for string in _STRING.finditer(plain) if string.lastindex)
    quotes = np.flatnonzero(is_quote)
    quotes = quotes[~_are_escaped(data, quotes)]
    ends = quotes[1::2] + 1  # of strings
    after = data[ends]
    spaced = ends[after <= ord(" ")].tolist()
    plainly = int(np.count_nonzero(after == ord(":")))
    return plainly + sum(1 for end in spaced if _COLON.match(raw, end))


def _are_escaped(data: NDArray[np.uint8], places: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether an odd number of backslashes is before each of these places."""
    escaped = np.zeros(len(places), np.bool_)
    left = np.arange(len(places))
    for back in range(1, _MANY_SLASHES):
        left = left[data[places[left] - back] == ord("\\")]
        if not len(left):
            return escaped
        escaped[left] ^= True
    return _after_odd_runs(data)[places]


def _after_odd_runs(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The same of every place, and not slower where somebody writes thousands in a row."""
    slashes = np.flatnonzero(data == ord("\\"))
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(begins, append=len(slashes))
    escaped = np.zeros(len(data) + 1, np.bool_)
    escaped[(slashes[begins] + lengths)[lengths % 2 == 1]] = True
    return escaped


def _inside(level: list[Any]) -> list[Any]:
    """The objects and lists that are members or items of these."""
    objects = [value for value in level if type(value) is dict]
    lists = [value for value in level if type(value) is list]
    # Millions of token ids hold nothing: their types say so faster than they do one by one.
    holding = [each for each in lists if not _CONTAINERS.isdisjoint(map(type, each))]
    values = chain(chain.from_iterable(map(dict.values, objects)), *holding)
    return [value for value in values if type(value) in _CONTAINERS]
