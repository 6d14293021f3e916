"""Server-sent events without I/O: bytes in, whole events with their exact bytes out.

Works on bytes throughout, so a character cut in two between chunks is never seen. What is an
event, a line and a field follows the WHATWG HTML standard, section 9.2.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The largest event that is looked into. SGLang's /generate repeats the whole text and its ids in
# every event: a million tokens' worth are some 12 MB.
MAX_EVENT_BYTES = 16 * 2**20

_BOM = b"\xef\xbb\xbf"
_EOL = re.compile(rb"\r\n|\n|\r")
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LONGEST_BLANK_LINE = 4  # CR LF CR LF


class Event(NamedTuple):
    """One event with its terminating blank line, or a piece of one that is ``oversized``."""

    raw: bytes
    oversized: bool = False


class Splitter:
    """Cuts a stream of bytes into events; the bytes of all events are the bytes received.

    Holds one unfinished event, at most ``max_event`` bytes of it: a longer one comes out in
    pieces. An event that ends in a bare CR is held until the next byte tells CR from CR LF.
    """

    def __init__(self, max_event: int = MAX_EVENT_BYTES) -> None:
        self._max_event = max_event
        self._held = bytearray()
        self._seen_cr = False
        self._inside_oversized = False

    def receive(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes."""
        self._seen_cr = self._seen_cr or b"\r" in chunk
        if not self._held and not self._seen_cr and _ends_first_event(chunk):
            return [self._event(chunk)]
        searched = max(0, len(self._held) - _LONGEST_BLANK_LINE + 1)
        self._held += chunk
        events = []
        start = 0
        while end := self._boundary(max(start, searched)):
            events.append(self._event(bytes(self._held[start:end])))
            start = end
        del self._held[:start]
        if len(self._held) > self._max_event or self._inside_oversized:
            events += self._let_go()
        return events

    @property
    def holds(self) -> bool:
        """Whether the next bytes continue an event."""
        return bool(self._held) or self._inside_oversized

    def end(self) -> list[Event]:
        """What is left when no more bytes come: at most one event, which may be unfinished."""
        rest = bytes(self._held)
        self._held.clear()
        return [self._event(rest)] if rest else []

    def _boundary(self, start: int) -> int:
        """Where the first blank line from ``start`` on ends; 0 where none is complete."""
        if not self._seen_cr:
            at = self._held.find(b"\n\n", start)
            return at + 2 if at >= 0 else 0
        found = _BLANK_LINE.search(self._held, start)
        if found is None:
            return 0
        end = found.end()
        undecided = end == len(self._held) and self._held.endswith(b"\r")
        return 0 if undecided else end

    def _event(self, raw: bytes) -> Event:
        oversized = self._inside_oversized or len(raw) > self._max_event
        self._inside_oversized = False
        return Event(raw, oversized)

    def _let_go(self) -> list[Event]:
        """All that cannot be part of a blank line yet to come, as a piece of an oversized event."""
        self._inside_oversized = True
        keep = _LONGEST_BLANK_LINE - 1
        piece = bytes(self._held[:-keep])
        del self._held[:-keep]
        return [Event(piece, oversized=True)] if piece else []


def _ends_first_event(chunk: bytes) -> bool:
    return chunk.endswith(b"\n\n") and chunk.find(b"\n\n") == len(chunk) - 2


def _field(raw: bytes, name: bytes) -> list[bytes]:
    values = []
    for line in _EOL.split(raw.removeprefix(_BOM)):
        key, _, value = line.partition(b":")
        if key == name:
            values.append(value.removeprefix(b" "))
    return values


def data_of(raw: bytes) -> bytes:
    """The event's data, lines joined by LF; empty where it has none (a comment, a keep-alive)."""
    if raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return raw[6:-2]
    return b"\n".join(_field(raw, b"data"))


def name_of(raw: bytes) -> bytes:
    """The event's name; empty where it has none."""
    names = _field(raw, b"event")
    return names[-1] if names else b""


def with_data(raw: bytes, data: bytes) -> bytes:
    """The event with other data; its other lines and its line ends stay."""
    first_end = _EOL.search(raw)
    eol = first_end.group() if first_end else b"\n"
    bom = _BOM if raw.startswith(_BOM) else b""
    lines = _EOL.split(raw.removeprefix(_BOM))
    kept = [line for line in lines if line and line.partition(b":")[0] != b"data"]
    kept += [b"data: " + line for line in data.split(b"\n")]
    return bom + eol.join(kept) + eol * 2


def event(data: bytes, name: str = "") -> bytes:
    """A new event of one line of data."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + data + b"\n\n"
