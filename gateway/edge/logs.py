"""What processes of poolgate's say of themselves on standard error: text, or JSON lines.

One line each, and never a flood. An exception is told by its type and place: its message may quote
a request.
"""

from __future__ import annotations

import logging
import sys
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TypeAlias

import msgspec

from gateway.settings.observing import Logging

BURST = 10  # lines of one kind in a period; the rest is only counted
PERIOD = 10.0  # seconds
MOST_KINDS = 1000  # remembered: more of them come of libraries that log without a template
# Bounded where they are opened, a tenant at a time, and each is asked for by its id.
EXEMPT = frozenset({"poolgate.incident"})

FRAMES = 4  # of an exception's place, the innermost first

# What could begin a line of its own, or move a terminal's cursor; what of it JSON lets pass.
_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))
} | {ord("\n"): "\\n", ord("\r"): "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}  # fmt: skip
_IN_JSON: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}

_Error: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


def log_to_stderr(settings: Logging | None = None, worker: int | None = None) -> None:
    """Write the log as configured from now on, instead of as it was until now.

    ``worker`` is the process's number under a supervisor.
    """
    settings = settings or Logging()
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _StandardError)]:
        root.removeHandler(handler)
    handler = _StandardError(sys.stderr)
    handler.addFilter(Quiet())
    handler.setFormatter(JsonLines(worker) if settings.format == "json" else TextLines(worker))
    root.addHandler(handler)
    root.setLevel(settings.level.upper())


def place(error: BaseException) -> str:
    """An exception's type and where it was raised; nothing of its message."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"


class _StandardError(logging.StreamHandler[Any]):
    """The handler that is replaced when the settings change."""


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


class TextLines(logging.Formatter):
    """A line for people, one whatever its values hold."""

    def __init__(self, worker: int | None = None) -> None:
        prefix = "" if worker is None else f"worker {worker}: "
        super().__init__(f"%(asctime)s %(levelname)s {prefix}%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Control characters as escapes."""
        return super().format(record).translate(_CONTROLS)

    def formatException(self, ei: _Error) -> str:  # noqa: N802 - logging's name
        """See ``place``."""
        return place(ei[1]) if ei[1] is not None else ""


class JsonLines(logging.Formatter):
    """One JSON object a line; its members are in docs/logs.md."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """See docs/logs.md."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "worker": self._worker,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = place(record.exc_info[1])
        incident = getattr(record, "incident", None)
        if incident is not None:
            line |= {"message": "incident", "incident": incident}
        return msgspec.json.encode(line).decode().translate(_IN_JSON)
