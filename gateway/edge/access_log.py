"""Access records as JSON lines, gathered and written together.

The logging module costs as much as counting a short prompt; a line here costs a microsecond. What
is lost if the process is killed is at most ``EVERY`` seconds of records, never a metric.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

EVERY = 0.25  # seconds between writes
MOST = 256 * 1024  # bytes gathered at most before a write


class AccessLog:
    """Lines for one binary stream. ``close`` writes what is left.

    ``at_once`` is how many bytes go out in one write. With at most ``select.PIPE_BUF`` of them,
    lines of several processes on one pipe stay whole.
    """

    def __init__(self, stream: BinaryIO, at_once: int = MOST) -> None:
        self._stream = stream
        self._at_once = at_once
        self._lines: list[bytes] = []
        self._size = 0
        self._due: asyncio.TimerHandle | None = None

    def write(self, line: bytes) -> None:
        """Take a line without its end."""
        self._lines.append(line)
        self._size += len(line)
        if self._size >= MOST:
            self._flush()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(EVERY, self._flush)

    def close(self) -> None:
        """Write what is left."""
        self._flush()

    def _flush(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        lines, self._lines, self._size = self._lines, [], 0
        # A reader that went away must not take the gateway with it.
        with contextlib.suppress(OSError, ValueError):
            for piece in _pieces(lines, self._at_once):
                self._stream.write(piece)
                self._stream.flush()


def _pieces(lines: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Whole lines, ended, in pieces of at most ``most`` bytes; a longer line is one by itself."""
    piece = bytearray()
    for line in lines:
        if piece and len(piece) + len(line) >= most:
            yield bytes(piece)
            piece.clear()
        piece += line
        piece += b"\n"
    if piece:
        yield bytes(piece)
