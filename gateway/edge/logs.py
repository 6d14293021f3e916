"""What processes of poolgate's say of themselves, on standard error: text, or JSON lines.

An exception is told by its type and place. Its message may quote a request.
"""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TypeAlias

import msgspec

from gateway.edge.quiet import Quiet, one_line
from gateway.settings.observing import Logging

FRAMES = 4  # of an exception's place, the innermost first
# What JSON lets pass of what could end a line or move a cursor.
_LET_PASS: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}

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


class TextLines(logging.Formatter):
    """A line for people."""

    def __init__(self, worker: int | None = None) -> None:
        prefix = "" if worker is None else f"worker {worker}: "
        super().__init__(f"%(asctime)s %(levelname)s {prefix}%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever its values hold."""
        return one_line(super().format(record))

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
        return msgspec.json.encode(line).decode().translate(_LET_PASS)
