"""Holding, scrubbing and passing on an answer in which a sentinel may stand.

Whole events are held while any channel's text could still become a sentinel, and released in
order and unchanged once none can. Our own tenant's sentinel, an echo of the marker we placed, is
cut out of the strings it stands in; a foreign one is an alarm: from there on nothing is released
until somebody says whether it has a business here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.sentinel import Numbers
from gateway.core.sentinel_channels import Channel, Held, Span, Watch
from gateway.core.sentinel_scan import Found
from gateway.dialects import sse, wire
from gateway.dialects.answers import MAX_BODY_BYTES
from gateway.dialects.base import AnswerReader
from gateway.dialects.channels import Key, Piece, pieces_of_body, pieces_of_event
from gateway.dialects.moulds import Moulds, Recognised
from gateway.types import Observation

# A channel silent for so many events no longer holds up the others.
LAPSE_AFTER = 64
MAX_CHANNELS = 4096


@dataclass(frozen=True, slots=True)
class Alarm:
    """A foreign sentinel, and where it stands."""

    found: Found
    channel: Channel
    spans: Sequence[Span]


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
        self._queue: deque[Held] = deque()
        self._channels: dict[Key, Channel] = {}
        self._moulds: Final = Moulds()
        self._open: dict[Channel, None] = {}
        self._count = 0  # events so far
        self._runs: set[Numbers] = set()
        self.alarms: list[Alarm] = []
        self.gap: str | None = None

    def receive(self, chunk: bytes) -> bytes:
        """Take a chunk; return what may go to the client now."""
        out = self._inner.receive(chunk)
        if self.alarms:  # nobody settled them, so nobody waits for more
            self._queue.clear()
            return b""
        if self._splitter is None:
            return self._collect(out)
        if not out:
            return b""
        if not self._splitter.holds and (known := self._moulds.recognise(out)) is not None:
            return self._recognised(out, known)
        events = self._splitter.receive(out)
        if len(events) == 1:
            return self._event(events[0])
        return b"".join([self._event(event) for event in events])

    def end(self) -> bytes:
        """The answer is over: return what was held, unless there is an alarm."""
        rest = self._inner.end()
        if self._splitter is None:
            out = self._collect(rest)
            self._whole()
        else:
            events = self._splitter.receive(rest) + self._splitter.end()
            out = b"".join([self._event(event) for event in events])
        self._open.clear()
        return out + self._release()

    @property
    def complete(self) -> bool:
        """As the inner reader saw it."""
        return self._inner.complete

    @property
    def new_ids(self) -> tuple[str, ...]:
        """As the inner reader saw it."""
        return self._inner.new_ids

    @property
    def failure(self) -> bytes:
        """As the inner reader saw it."""
        return self._inner.failure

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
        if self._size <= MAX_BODY_BYTES:
            return b""
        self.gap = "too_large"
        released = b"".join(self._body)
        self._body.clear()
        return released

    def _whole(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        held = Held(body, is_event=False)
        self._queue.append(held)
        if body and (value := wire.decode_any(body)) is not None:
            self._scan(held, pieces_of_body(value))
        elif body:
            self.gap = "not_json"

    # --- streams ------------------------------------------------------------------------------

    def _event(self, event: sse.Event) -> bytes:
        raw, oversized = event
        if not oversized and (known := self._moulds.recognise(raw)) is not None:
            return self._recognised(raw, known)
        self._count += 1
        held = Held(raw, is_event=True)
        self._queue.append(held)
        data = b"" if oversized else sse.data_of(raw)
        if oversized:
            self.gap = "too_large"
        elif data.strip() == b"[DONE]":
            self._open.clear()
        elif data and (value := wire.decode_any(data)) is not None:
            pieces = pieces_of_event(value)
            if self._scan(held, pieces) and not self._watch.repeats:
                self._moulds.learn(raw, pieces)
        elif data:
            self.gap = "not_json"
        return self._release()

    def _recognised(self, raw: bytes, known: Recognised) -> bytes:
        channel = self._channels[known.mould.key]
        scanner = channel.scanner
        start = scanner.end
        found = scanner.feed(known.text)
        self._count += 1
        channel.last = self._count
        if not found and not self._queue and scanner.open_from is None:
            channel.spans = ()
            return raw
        held = Held(raw, is_event=True)
        self._queue.append(held)
        span = Span(held, known.mould.path, start, scanner.end)
        self._grown(channel, found, channel.note(span))
        return self._release()

    # --- scanning -----------------------------------------------------------------------------

    def _scan(self, held: Held, pieces: Sequence[Piece]) -> bool:
        """Scan the texts; whether all of them could be."""
        scanned = True
        for piece in pieces:
            channel = self._channel(piece.key)
            if channel is None:
                self.gap = "too_many_channels"
                scanned = False
                continue
            found, spans = channel.take(held, piece)
            channel.last = self._count
            if piece.key is None:  # nothing continues it
                self._runs.update(channel.scanner.close())
                channel.spans = ()
            self._grown(channel, found, spans)
        return scanned

    def _grown(self, channel: Channel, found: Sequence[Found], spans: Sequence[Span]) -> None:
        if channel.spans:
            self._open[channel] = None
        elif self._open:
            self._open.pop(channel, None)
        for each in found:
            if each.sighting.own:
                channel.cut(each, spans)
            elif each.sighting.counts:
                self.alarms.append(Alarm(each, channel, spans))

    def _channel(self, key: Key | None) -> Channel | None:
        if key is None:
            return Channel(self._watch.scanner())
        channel = self._channels.get(key)
        if channel is None and len(self._channels) < MAX_CHANNELS:
            channel = self._channels[key] = self._watch.channel()
        return channel

    # --- releasing ----------------------------------------------------------------------------

    def _release(self) -> bytes:
        if self.alarms:
            return b""
        preamble, queue = self._watch.preamble, self._queue
        if not self._open and len(queue) == 1:
            return queue.popleft().rendered(preamble)
        keep = set(map(id, self._holding()))
        released = []
        while queue and id(queue[0]) not in keep:
            released.append(queue.popleft().rendered(preamble))
        return b"".join(released)

    def _holding(self) -> Iterator[Held]:
        for channel in tuple(self._open):
            if self._count - channel.last > LAPSE_AFTER or channel.holds is None:
                channel.spans = ()
                del self._open[channel]
            else:
                yield channel.holds
