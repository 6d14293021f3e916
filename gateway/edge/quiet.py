"""A log that no client floods and no value breaks: few lines of one kind, each one line."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

BURST = 10  # lines of one kind in a period; the rest is only counted
PERIOD = 10.0  # seconds
MOST_KINDS = 1000  # remembered: more of them come of libraries that log without a template
# Bounded where they are opened, a tenant at a time, and each is asked for by its id.
EXEMPT = frozenset({"poolgate.incident"})

# What could begin a line of its own, or move a terminal's cursor.
_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))
} | {ord("\n"): "\\n", ord("\r"): "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}  # fmt: skip


@dataclass(slots=True)
class _Kind:
    since: float
    told: int = 0
    left_out: int = 0


class Quiet(logging.Filter):
    """Lets ``BURST`` lines of one kind pass in ``PERIOD`` seconds; the next says what it left out.

    A kind is a logger, a level and a template, so that no client's values make another.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is told."""
        if record.name in EXEMPT:
            return True
        key = (record.name, record.levelno, str(record.msg))
        kind = self._kinds.get(key)
        if kind is None or record.created - kind.since >= PERIOD:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            if kind is not None and kind.left_out:
                record.msg = f"{record.msg} ({kind.left_out} more like it were left out)"
            kind = self._kinds[key] = _Kind(record.created)
        kind.told += 1
        if kind.told <= BURST:
            return True
        kind.left_out += 1
        return False


def one_line(text: str) -> str:
    """With control characters as escapes."""
    return text.translate(_CONTROLS)
