"""All cases as bytes, for a store."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.core.quarantine import NOTHING, BackendKey, Case

MOST_CASES = 1000  # of backends that no configuration names any more, mostly


class _Entry(msgspec.Struct, array_like=True):
    name: str
    url: str
    case: Case


def written(cases: Mapping[BackendKey, Case]) -> bytes:
    """The cases but empty ones, in an order of their own; of too many the latest."""
    told = [(key, case) for key, case in cases.items() if case != NOTHING]
    told.sort(key=lambda each: (_latest(each[1]), each[0]))
    entries = [_Entry(*key, case) for key, case in sorted(told[-MOST_CASES:])]
    return msgspec.json.encode(entries)


def read(data: bytes) -> dict[BackendKey, Case]:
    """The cases in ``data``. Raises ``ValueError`` where it is no case file."""
    entries = msgspec.json.decode(data, type=list[_Entry])
    return {(entry.name, entry.url): entry.case for entry in entries}


def _latest(case: Case) -> float:
    """When something last happened in it."""
    marks = [case.released, *([case.out] if case.out else [])]
    return max([*(mark.at for mark in marks), *(clue.at for clue in case.clues)])
