"""Patterns of model names, and whether two can mean the same model."""

from __future__ import annotations

from fnmatch import fnmatchcase


def covers(pattern: str, model: str) -> bool:
    """Whether a pattern covers a model: ``*`` stands for any characters, and case counts."""
    return fnmatchcase(model, pattern)


def overlap(one: str, other: str) -> bool:
    """Whether some name is covered by both patterns.

    Exact for ``*`` and ``?``. Sets such as ``[ab]`` are taken to cover anything that a single
    character can be, so the answer may then be a yes too many.
    """
    parts = _tokens(other)
    places = range(len(parts) + 1)
    # row[j]: whether what is left of ``one`` and ``parts[j:]`` can be the same text
    row = [all(part == "*" for part in parts[j:]) for j in places]
    for part in reversed(_tokens(one)):
        after, row = row, [False] * len(row)
        for j in reversed(places):
            row[j] = _same(part, parts, j, row, after)
    return row[0]


def _same(part: str, parts: list[str], j: int, row: list[bool], after: list[bool]) -> bool:
    """One cell: the pattern from ``part`` on against ``parts[j:]``."""
    other = parts[j] if j < len(parts) else ""
    if part == "*":
        return after[j] or (other != "" and row[j + 1])
    if other == "*":
        return row[j + 1] or after[j]
    alike = part == other or "?" in (part, other)
    return other != "" and alike and after[j + 1]


def _tokens(pattern: str) -> list[str]:
    """Characters, ``*`` and ``?``; a set counts as ``?``."""
    parts: list[str] = []
    place = 0
    while place < len(pattern):
        end = pattern.find("]", place + 2) if pattern[place] == "[" else -1
        parts.append("?" if end > 0 else pattern[place])
        place = (end if end > 0 else place) + 1
    return parts
