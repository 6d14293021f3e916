"""Holding, scrubbing and passing on an answer in which a sentinel may stand.

Whole events are held while any channel's text could still become a sentinel, and released in
order and unchanged once none can. Our own tenant's sentinel, an echo of the marker we placed, is
cut out of the strings it stands in; a foreign one is an alarm: from there on nothing is released
until somebody says whether it has a business here.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gateway.core.sentinel import Numbers
from gateway.core.sentinel_scan import Found, Read, Scanner
from gateway.dialects import sse, wire
from gateway.dialects.answers import MAX_BODY_BYTES
from gateway.dialects.base import AnswerReader
from gateway.dialects.channels import Key, Path, Piece, pieces_of_body, pieces_of_event
from gateway.types import Observation

# A channel silent for so many events no longer holds up the others.
LAPSE_AFTER = 64
MAX_CHANNELS = 4096
MAX_HELD_BYTES = MAX_BODY_BYTES
# So many steps must have repeated all that came before until a text counts as cumulative.
_SURE = 3


@dataclass(frozen=True, slots=True)
class Watch:
    """What to look for in one answer. ``preamble`` introduces our markers and goes with them.

    ``cumulative``: events may repeat the whole text so far (SGLang's /generate).
    """

    read: Read
    first_words: frozenset[int]
    preamble: str = ""
    cumulative: bool = False

    def scanner(self) -> Scanner:
        """For one channel."""
        return Scanner(self.read, self.first_words)


@dataclass(slots=True)
class _Held:
    """An event, or a whole body, and what is to be cut out of it before it is released."""

    raw: bytes
    value: Any
    is_event: bool
    cuts: dict[Path, set[tuple[int, int]]] = field(default_factory=dict)
    nulls: set[Path] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Span:
    """A channel's characters from ``start`` to ``end``: they are all of the string at ``path``."""

    held: _Held
    path: Path
    start: int
    end: int
    tokenwise: bool

    def cut(self, start: int, end: int) -> None:
        """Cut the channel's characters from ``start`` to ``end`` as far as they stand here."""
        if end <= self.start or start >= self.end:
            return
        if self.tokenwise:
            self.held.nulls.add(self.path)
            return
        cut = max(start, self.start) - self.start, min(end, self.end) - self.start
        self.held.cuts.setdefault(self.path, set()).add(cut)


class _Channel:
    """One growing text: its scanner, and where those of its characters stand that are held."""

    __slots__ = ("last", "scanner", "spans")

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.spans: deque[_Span] = deque()
        self.last = 0  # the number of the last event with text of this channel

    def take(self, held: _Held, piece: Piece) -> tuple[list[Found], Sequence[_Span]]:
        """The sentinels that the piece completes, and where this channel's characters stand."""
        start = self.scanner.end
        found = self.scanner.feed(piece.text)
        return found, self._note(_Span(held, piece.path, start, self.scanner.end, piece.tokenwise))

    def cut(self, found: Found, spans: Sequence[_Span]) -> None:
        """Cut a sentinel out of wherever it stands."""
        for span in spans:
            span.cut(found.start, found.end)

    @property
    def holds(self) -> _Held | None:
        """The first event that must not be released yet."""
        return self.spans[0].held if self.spans else None

    def _note(self, span: _Span) -> Sequence[_Span]:
        """Remember where characters stand, and forget what nothing can depend on any more."""
        spans = (*self.spans, span)
        needed = self.scanner.open_from
        self.spans = deque(each for each in spans if needed is not None and each.end > needed)
        return spans


class _Repeating(_Channel):
    """A text that each event may repeat from its beginning (SGLang's /generate).

    Whether it does shows at the second event; one that does not is read as any other. Where an
    engine takes back what it wrote, its text is read anew.
    """

    __slots__ = ("_before", "_gone", "_repeats", "_watch")

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch.scanner())
        self._watch = watch
        self._before = ""
        self._repeats = 0  # how often a longer text began with all before; -1: it does not
        self._gone: list[tuple[int, int]] = []

    def take(self, held: _Held, piece: Piece) -> tuple[list[Found], Sequence[_Span]]:
        """See ``_Channel``; what was cut out before is cut out of the repetition too."""
        text, before = piece.text, self._before
        if not text.startswith(before):
            if self._repeats < _SURE:
                self._repeats, self._before = -1, ""
            else:
                self.scanner, self._before, self._gone = self._watch.scanner(), "", []
        if self._repeats < 0:
            return super().take(held, piece)
        self._repeats += bool(self._before) and len(text) > len(self._before)
        found = self.scanner.feed(text[len(self._before) :])
        self._before = text
        span = _Span(held, piece.path, 0, self.scanner.end, piece.tokenwise)
        for start, end in self._gone:
            span.cut(start, end)
        return found, self._note(span)

    def cut(self, found: Found, spans: Sequence[_Span]) -> None:
        """See ``_Channel``; later repetitions lose it too."""
        super().cut(found, spans)
        self._gone.append((found.start, found.end))


@dataclass(frozen=True, slots=True)
class Alarm:
    """A foreign sentinel, and where it stands."""

    found: Found
    channel: _Channel
    spans: tuple[_Span, ...]


class SentinelReader:
    """An ``AnswerReader`` around another one, whose output it scans.

    ``alarms`` must be looked at after each ``receive`` and ``end``, and settled: while there are
    any, nothing comes out. ``gap`` says why something was not scanned, if so.
    """

    def __init__(self, inner: AnswerReader, watch: Watch, *, streams: bool) -> None:
        self._inner = inner
        self._watch = watch
        self._splitter: Final = sse.Splitter() if streams else None
        self._body: list[bytes] = []
        self._size = 0
        self._queue: deque[_Held] = deque()
        self._channels: dict[Key, _Channel] = {}
        self._open: dict[_Channel, None] = {}
        self._count = 0  # events so far
        self._ended = False
        self._runs: set[Numbers] = set()
        self.alarms: list[Alarm] = []
        self.gap: str | None = None

    def receive(self, chunk: bytes) -> bytes:
        """Take a chunk; return what may go to the client now."""
        out = self._inner.receive(chunk)
        if self._splitter is None:
            return self._collect(out)
        if not out:
            return b""
        released = [self._event(event) for event in self._splitter.receive(out)]
        return released[0] if len(released) == 1 else b"".join(released)

    def end(self) -> bytes:
        """The answer is over: return what was held, unless there is an alarm."""
        rest = self._inner.end()
        self._ended = True
        if self._splitter is None:
            self._collect(rest)
            self._whole()
            return self._release()
        events = self._splitter.receive(rest) + self._splitter.end()
        released = [self._event(event) for event in events]
        self._open.clear()
        return b"".join((*released, self._release()))

    def result(self) -> Observation:
        """What the inner reader saw."""
        return self._inner.result()

    def settle(self, quoted: Container[Numbers]) -> bytes:
        """Go on after the alarms: sentinels not ``quoted`` by the request itself are cut out."""
        for alarm in self.alarms:
            if alarm.found.sighting.numbers not in quoted:
                alarm.channel.cut(alarm.found, alarm.spans)
        self.alarms = []
        return self._release()

    def runs(self) -> frozenset[Numbers]:
        """Runs of five list words and more that were no sentinel; once the answer is over."""
        for channel in self._channels.values():
            self._runs.update(channel.scanner.close())
        return frozenset(self._runs)

    # --- whole answers ------------------------------------------------------------------------

    def _collect(self, data: bytes) -> bytes:
        if self.gap is not None:
            return data
        self._size += len(data)
        self._body.append(data)
        if self._size <= MAX_HELD_BYTES:
            return b""
        self.gap = "too_large"
        released = b"".join(self._body)
        self._body.clear()
        return released

    def _whole(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        held = self._decoded(body, body, is_event=False)
        self._queue.append(held)
        if body:
            self._scan(held, pieces_of_body(held.value))

    # --- streams ------------------------------------------------------------------------------

    def _event(self, event: sse.Event) -> bytes:
        raw = event.raw
        self._count += 1
        if event.oversized:
            self.gap = "too_large"
            held = _Held(raw, None, is_event=True)
        elif not (data := sse.data_of(raw)) or data.strip() == b"[DONE]":
            if data:
                self._open.clear()
            held = _Held(raw, None, is_event=True)
        else:
            held = self._decoded(raw, data, is_event=True)
        self._queue.append(held)
        if held.value is not None:
            self._scan(held, pieces_of_event(held.value))
        return self._release()

    def _decoded(self, raw: bytes, data: bytes, *, is_event: bool) -> _Held:
        value = wire.decode_any(data)
        if value is None and data.strip():
            self.gap = self.gap or "not_json"
        return _Held(raw, value, is_event)

    def _scan(self, held: _Held, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if piece.key is not None:
                if (channel := self._channel(piece.key)) is not None:
                    self._grow(channel, held, piece)
            else:  # nothing continues it
                channel = _Channel(self._watch.scanner())
                self._grow(channel, held, piece)
                self._open.pop(channel, None)
                self._runs.update(channel.scanner.close())

    def _grow(self, channel: _Channel, held: _Held, piece: Piece) -> None:
        found, spans = channel.take(held, piece)
        channel.last = self._count
        if channel.spans:
            self._open[channel] = None
        elif self._open:
            self._open.pop(channel, None)
        for each in found:
            if each.sighting.own:
                channel.cut(each, spans)
            elif each.sighting.counts:
                self.alarms.append(Alarm(each, channel, tuple(spans)))

    def _channel(self, key: Key) -> _Channel | None:
        channel = self._channels.get(key)
        if channel is None:
            if len(self._channels) >= MAX_CHANNELS:
                self.gap = "too_many_channels"
                return None
            watch = self._watch
            channel = _Repeating(watch) if watch.cumulative else _Channel(watch.scanner())
            self._channels[key] = channel
        return channel

    # --- releasing ----------------------------------------------------------------------------

    def _release(self) -> bytes:
        if self.alarms:
            return b""
        queue = self._queue
        if not self._open and len(queue) == 1:
            return _rendered(queue.popleft(), self._watch.preamble)
        keep = set(map(id, self._holding()))
        released = []
        while queue and id(queue[0]) not in keep:
            released.append(_rendered(queue.popleft(), self._watch.preamble))
        return b"".join(released)

    def _holding(self) -> Iterator[_Held]:
        for channel in tuple(self._open):
            if self._count - channel.last > LAPSE_AFTER or channel.holds is None:
                channel.spans.clear()
                del self._open[channel]
            else:
                yield channel.holds


def _rendered(held: _Held, preamble: str) -> bytes:
    """The event's or body's bytes, with what is cut out of them gone and no other value touched."""
    if not held.cuts and not held.nulls:
        return held.raw
    edits: dict[Path, Any] = dict.fromkeys(held.nulls)
    for path, cuts in held.cuts.items():
        text = _at(held.value, path)
        for start, end in sorted(cuts, reverse=True):
            head = text[:start].removesuffix(preamble).removesuffix(preamble.lstrip())
            text = head + text[end:]
        edits[path] = text
    data = sse.data_of(held.raw) if held.is_event else held.raw
    try:
        for path, value in edits.items():
            data = wire.edit_at(data, path, wire.encode(value))
    except (msgspec.MsgspecError, UnicodeEncodeError):  # NaN, half a surrogate: written anew
        for path, value in edits.items():
            _at(held.value, path[:-1])[path[-1]] = value
        data = json.dumps(held.value).encode()
    return sse.with_data(held.raw, data) if held.is_event else data


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value
