"""HTTP/1.1 on asyncio streams, for both ends: nothing is repaired, so that a cut is seen as one.

No client library: what matters here is how exactly a body ended, and closing at any byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

MOST_HEAD = 2**16
_RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends RST
BROKEN = (OSError, asyncio.IncompleteReadError, EOFError)


@dataclass(frozen=True, slots=True)
class Head:
    """A message's first line and its fields, whose names are in lower case."""

    line: str
    fields: dict[str, str]

    @property
    def status(self) -> int:
        return int(self.line.split(" ", 2)[1])

    @property
    def keeps_alive(self) -> bool:
        return self.fields.get("connection", "").lower() != "close"


async def read_head(reader: asyncio.StreamReader) -> Head:
    """The head of the next message. Raises ``EOFError`` where there is none, ``BROKEN``."""
    raw = await reader.readuntil(b"\r\n\r\n")
    line, *fields = raw[:-4].decode("latin-1").split("\r\n")
    pairs = (field.partition(":") for field in fields)
    return Head(line, {name.strip().lower(): value.strip() for name, _, value in pairs})


async def read_body(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    """The body in pieces. Ends only where HTTP says so; raises ``BROKEN`` where it is cut."""
    if head.fields.get("transfer-encoding", "").lower() == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            async for piece in _exactly(reader, size):
                yield piece
            await reader.readexactly(2)
        await reader.readexactly(2)
        return
    async for piece in _exactly(reader, int(head.fields.get("content-length", 0))):
        yield piece


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    """``size`` bytes as they come, so that what came before a cut is seen too."""
    while size:
        piece = await reader.read(size)
        if not piece:
            raise EOFError
        size -= len(piece)
        yield piece


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; empty data ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def close(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    """Hang up at once: by RST, or in good order (FIN)."""
    with contextlib.suppress(OSError, ValueError):  # it may have gone already
        found = writer.get_extra_info("socket")
        if reset and found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
    writer.close()
