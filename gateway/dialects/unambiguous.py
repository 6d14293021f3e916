"""JSON that every parser reads alike: each name once in its object, and not nested without end.

Of a name written twice the parsers of Python, llama.cpp and Go take the last value, other ones the
first, and Go's merges objects. What was counted has to be what is run, so neither may pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

MOST_NESTED = 100  # objects and lists inside each other; schemas of tools reach twenty or so
MOST_HELD = 50_000  # objects and lists altogether: a long conversation with tools has thousands

_SHORT = 2**16  # bytes; in longer bodies, mostly of text, objects are fewer than bytes to look at
_MANY_QUOTES = 2**20  # to note where so many are, in megabytes of empty strings, takes much memory
_MANY_SLASHES = 32  # in a row; more are not text
_FEW = 16  # items of a list, which are looked at sooner than their types are put together
_CONTAINERS: Final = frozenset[type]({dict, list})
_LOOKED_FOR: Final = _CONTAINERS | {str}


class Fault(Enum):
    """Why a body is not read alike by all."""

    OVERGROWN = "overgrown"
    REPEATS = "repeats"


def fault_of(raw: bytes, body: dict[str, Any]) -> Fault | None:
    """What is wrong with ``raw``, of which ``body`` was decoded; None: nothing.

    Overgrown: over ``MOST_NESTED`` objects and lists inside each other, ``body`` among them, or
    over ``MOST_HELD`` anywhere (looking at each would keep others waiting). Repeats: an object
    holds a name twice. Of such a one decoding keeps the last, so ``raw`` has no repeated name just
    where ``body`` holds as many strings, names among them; or where it is what encoding gives.
    """
    if _is_small_and_comes_back(raw, body):
        return None
    depth = held = strings = 0
    level: list[Any] = [body]
    while level:
        depth, held = depth + 1, held + len(level)
        if depth > MOST_NESTED or held > MOST_HELD:
            return Fault.OVERGROWN
        found, level = _inside(level)
        strings += found
    return Fault.REPEATS if strings != _strings_in(raw) else None


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


def _strings_in(raw: bytes) -> int:
    """How many strings valid JSON holds, names among them. About 0.2 ms a megabyte of text."""
    data = np.frombuffer(raw, np.uint8)
    is_quote = data == ord('"')
    if len(raw) >= _MANY_QUOTES and np.count_nonzero(is_quote) >= _MANY_QUOTES:
        return raw.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2
    (quotes,) = is_quote.nonzero()
    return (len(quotes) - _escaped(data, quotes)) // 2


def _escaped(data: NDArray[np.uint8], places: NDArray[np.intp]) -> int:
    """How many of these places have an odd number of backslashes before them.

    That is those after one or more, less those after two or more, and so on.
    """
    escaped, left = 0, places
    for back in range(1, _MANY_SLASHES):
        left = left[data[left - back] == ord("\\")]
        if not len(left):
            return escaped
        escaped += len(left) if back % 2 else -len(left)
    return int(np.count_nonzero(_after_odd_runs(data)[places]))


def _after_odd_runs(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether such a number is before each place; not slower where thousands are in a row."""
    slashes = np.flatnonzero(data == ord("\\"))
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(begins, append=len(slashes))
    escaped = np.zeros(len(data) + 1, np.bool_)
    escaped[(slashes[begins] + lengths)[lengths % 2 == 1]] = True
    return escaped


def _inside(level: list[Any]) -> tuple[int, list[Any]]:
    """How many strings are names, members or items of these, and the objects and lists in them."""
    strings, held = 0, []
    for value in level:
        values: Iterable[Any] = value
        if type(value) is dict:
            values = value.values()
            strings += len(value)
        elif len(value) > _FEW and _LOOKED_FOR.isdisjoint(map(type, value)):
            continue  # millions of token ids: their types say so faster than they do one by one
        for each in values:
            kind = type(each)
            if kind is str:
                strings += 1
            elif kind in _CONTAINERS:
                held.append(each)
    return strings, held
