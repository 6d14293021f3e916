"""Reading answers: one fold per dialect, three readers for the forms an answer takes.

A fold knows what the members of a dialect's JSON mean. A reader knows bytes: which may go on to
the client, when an answer is whole, and how much memory looking at it may cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

import msgspec

from gateway.dialects import sse, wire
from gateway.dialects.base import AnswerReader
from gateway.dialects.channels import pieces_of_event
from gateway.dialects.moulds import Moulds
from gateway.types import Ending, Observation, Usage

# The largest JSON answer held back to be looked at as a whole.
MAX_BODY_BYTES = 64 * 2**20
MAX_FAILURE_BYTES = 2**20  # of an answer's error that are kept to be read
MOST_TOKENS = 2**40  # in one exchange; more is no count

# Reading an event for its mould costs what is saved at so many others; so much goes on credit.
_LESSON, _CREDIT = 8, 64

_ERROR_MARKERS = (b'"error"', b"event: error", b"event:error")
_COMMON_MEMBERS = ("error", "type", "object", "id")
_DONE = b"[DONE]"
_ID = b'"id"'


class Forward(Enum):
    """What becomes of an event that was looked at."""

    KEEP = auto()
    DROP = auto()
    WITHOUT_USAGE = auto()


def tokens(usage: Mapping[str, Any], name: str) -> int | None:
    """A token count out of an engine's usage; None where it is missing or no count.

    JSON's integers have no end, and sums of these must fit metrics and traces.
    """
    value = usage.get(name)
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


class Fold:
    """What one answer said so far. Dialects override ``body`` and ``event``.

    ``members`` are the top-level members they read. ``markers`` are bytes that an event must
    hold to be worth decoding; an error's are added. ``terminal`` is set by whatever the dialect
    sends last, ``finished`` says that all was sent that a terminal event would confirm, ``spoke``
    that output of some kind was seen. ``unread_speaks``: events not worth decoding hold output.
    ``response_id`` is the id told last, ``new_ids`` are those told since a reader emptied it.
    """

    members: tuple[str, ...] = ()
    markers: tuple[bytes, ...] = ()
    ends_with_done = False
    unread_speaks = False

    def __init__(self) -> None:
        self.terminal = False
        self.failed = False
        self.spoke = False
        self.response_id: str | None = None
        self.new_ids: tuple[str, ...] = ()
        self.finish: dict[int, str] = {}

    def body(self, value: Mapping[str, Any]) -> None:
        """Fold in a whole JSON answer, or one item of it where the answer is a list."""
        raise NotImplementedError

    def event(self, value: Mapping[str, Any]) -> Forward:
        """Fold in the data of one event of a stream."""
        raise NotImplementedError

    def usage(self) -> Usage | None:
        """The usage reported so far."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether a clean end without a terminal event still is a whole answer."""
        return False

    def identify(self, value: Mapping[str, Any]) -> None:
        """Take the answer's id, where it is another than the one before. Some engines leave it
        empty in some events: that is none.
        """
        found = value.get("id")
        if not isinstance(found, str) or found == self.response_id:
            return
        if found or self.response_id is None:
            self.response_id = found
            self.new_ids += (found,)

    def fails(self, value: Mapping[str, Any]) -> bool:
        """Whether this object reports an error, in any engine's shape; remembered if so."""
        error = value.get("error") or "error" in (value.get("type"), value.get("object"))
        self.failed = self.failed or bool(error)
        return bool(error)


class _Reader:
    """What all readers keep count of."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._bytes_in = 0
        self._events = 0
        self._scanned = True
        self._ended = False
        self._names = (*_COMMON_MEMBERS, *fold.members)
        self.failure = b""

    def _ending(self) -> Ending:
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """See ``AnswerReader``."""
        return not self._fold.failed and self._ending() is Ending.COMPLETE

    @property
    def new_ids(self) -> tuple[str, ...]:
        """See ``AnswerReader``."""
        return self._fold.new_ids

    def _keep_failure(self, data: bytes) -> None:
        if self._fold.failed and not self.failure and len(data) <= MAX_FAILURE_BYTES:
            self.failure = data

    def result(self) -> Observation:
        """See ``AnswerReader``."""
        fold = self._fold
        return Observation(
            usage=fold.usage(),
            ending=Ending.UPSTREAM_ERROR if fold.failed else self._ending(),
            finish_reasons=tuple(reason for _, reason in sorted(fold.finish.items())),
            events=self._events,
            bytes_in=self._bytes_in,
            response_id=fold.response_id,
            scanned=self._scanned,
            spoke=fold.spoke,
        )


class JsonReader(_Reader):
    """Holds a JSON answer until it is whole, so that it can still be withheld.

    Beyond ``max_body`` bytes it lets go and passes the rest on unscanned.
    """

    def __init__(self, fold: Fold, max_body: int = MAX_BODY_BYTES) -> None:
        super().__init__(fold)
        self._max_body = max_body
        self._held: list[bytes] = []
        self._whole = False

    def receive(self, chunk: bytes) -> bytes:
        """Hold the chunk back, up to the bound."""
        self._bytes_in += len(chunk)
        if not self._scanned:
            return chunk
        self._held.append(chunk)
        if self._bytes_in <= self._max_body:
            return b""
        self._scanned = False
        return self._release()

    def end(self) -> bytes:
        """Read the answer and let it go."""
        self._ended = True
        body = self._release()
        if self._scanned:
            value = wire.decode_lenient(body, self._names)
            self._whole = value is not None
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict) and not self._fold.fails(part):
                    self._fold.body(part)
            self._keep_failure(body)
        return body

    def _release(self) -> bytes:
        body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        return body

    def _ending(self) -> Ending:
        whole = self._whole if self._scanned else self._ended
        return Ending.COMPLETE if whole else Ending.TRUNCATED


class StreamReader(_Reader):
    """Passes whole events on as they come, and looks into those few that say something.

    Of the others it learns the mould, so that the next is told by what differs: ``_tells`` would
    find in it what it finds in the differing string, and nothing in the rest.
    """

    def __init__(self, fold: Fold, max_event: int = sse.MAX_EVENT_BYTES) -> None:
        super().__init__(fold)
        self._splitter = sse.Splitter(max_event)
        self._markers = (*fold.markers, *_ERROR_MARKERS)
        self._end_unseen = False  # the last event was too large to tell what it was
        self._id_member = b""  # the id told last, as it stands in events
        self._moulds = Moulds()  # of events that say nothing
        # What a text without a quote may make of its event: the name in a marker, or a bare one.
        quoted = {marker.partition(b'"')[2].partition(b'"')[0] for marker in (*self._markers, _ID)}
        self._names_in_markers = frozenset(name.decode() for name in quoted)
        self._bare_markers = [each.decode() for each in self._markers if b'"' not in each]
        self._unknown = 0  # events that say nothing and had to be searched for it
        self._lessons = 0

    def receive(self, chunk: bytes) -> bytes:
        """Pass on the events that the chunk completes."""
        self._fold.new_ids = ()
        self._bytes_in += len(chunk)
        if not self._splitter.holds and self._is_known(chunk):
            return chunk
        events = self._splitter.receive(chunk)
        if len(events) == 1:
            return self._pass(events[0])
        return b"".join([self._pass(event) for event in events])

    def end(self) -> bytes:
        """Pass on an event that only lacked its blank line, unless it was cut off."""
        self._fold.new_ids = ()
        left = self._splitter.end()
        rest = b"".join([self._pass(event) for event in left])
        if any(event.oversized for event in left):
            self._end_unseen = False  # seen well enough: it never ended
        self._ended = True
        return b"" if self._ending() is Ending.TRUNCATED else rest

    def _pass(self, event: sse.Event) -> bytes:
        raw = event.raw
        if event.oversized:
            self._scanned = False
            self._end_unseen = True
            return raw
        if self._is_known(raw):
            return raw
        if self._events and raw.startswith((b"data:", b"event:")) and not self._tells(raw):
            self._count()
            self._fold.spoke |= self._fold.unread_speaks
            self._unknown += 1
            self._learn(raw)
            return raw
        return self._look_into(raw)

    def _is_known(self, raw: bytes) -> bool:
        """Whether it is an event of a known mould that says nothing; then it is counted."""
        known = self._moulds.recognise(raw)
        if known is None:
            return False
        _, text, as_written = known
        if self._tells_of(text) if as_written else self._tells(raw):
            return False
        self._events += 1
        self._end_unseen = False
        self._fold.spoke |= self._fold.unread_speaks
        return True

    def _tells_of(self, text: str) -> bool:
        """Whether ``_tells`` might find in an event what this text, in quotes, makes of it."""
        return text in self._names_in_markers or any(map(text.__contains__, self._bare_markers))

    def _learn(self, raw: bytes) -> None:
        """Reading an event for its mould pays where others of it follow."""
        if self._lessons * _LESSON <= _CREDIT + self._events - self._unknown:
            self._lessons += 1
            self._moulds.learn(raw, pieces_of_event(wire.decode_any(sse.data_of(raw))))

    def _count(self) -> None:
        self._events += 1
        self._end_unseen = False

    def _tells(self, raw: bytes) -> bool:
        for marker in self._markers:
            if marker in raw:
                return True
        # No model writes this member: the quotes of its text are escaped.
        return _ID in raw and not (self._id_member and self._id_member in raw)

    def _look_into(self, raw: bytes) -> bytes:
        data = sse.data_of(raw)
        if not data:
            return raw
        self._count()
        before = self._fold.response_id
        forward = self._read(raw, data)
        self._keep_failure(data)
        if self._fold.response_id != before:
            self._id_member = _id_member(raw, self._fold.response_id)
            self._moulds.forget()
        match forward:
            case Forward.DROP:
                return b""
            case Forward.WITHOUT_USAGE:
                return _without_usage(raw, data)
            case Forward.KEEP:
                return raw

    def _read(self, raw: bytes, data: bytes) -> Forward:
        fold = self._fold
        if data.strip() == _DONE:
            fold.terminal = fold.terminal or fold.ends_with_done
            return Forward.KEEP
        if sse.name_of(raw) == b"error":
            fold.failed = True
            return Forward.KEEP
        value = wire.decode_lenient(data, self._names)
        if not isinstance(value, dict) or fold.fails(value):
            return Forward.KEEP
        return fold.event(value)

    def _ending(self) -> Ending:
        whole = self._fold.terminal or (self._ended and (self._fold.finished or self._end_unseen))
        return Ending.COMPLETE if whole else Ending.TRUNCATED


def _id_member(raw: bytes, response_id: str | None) -> bytes:
    """The member that tells the id, as this engine writes it; empty where it is written oddly."""
    try:
        value = bytes(wire.encode(response_id))
    except UnicodeEncodeError:  # half of a surrogate pair, which a lenient reading lets through
        return b""
    spelt = (_ID + colon + value for colon in (b":", b": "))
    return next((member for member in spelt if member in raw), b"")


def _without_usage(raw: bytes, data: bytes) -> bytes:
    try:
        return sse.with_data(raw, wire.apply_edits(data, {"usage": None}))
    except msgspec.DecodeError:  # NaN and the like: rather a usage too many than a broken event
        return raw


class UnscannedReader(_Reader):
    """Passes on what it cannot look into: error answers, compressed ones, foreign types.

    Whether such an answer was whole is HTTP's word alone: ``end`` says COMPLETE.
    """

    def __init__(self, fold: Fold, *, failed: bool) -> None:
        super().__init__(fold)
        self._scanned = False
        fold.failed = failed

    def receive(self, chunk: bytes) -> bytes:
        """Pass the chunk on, and keep what an engine says of its failure."""
        self._bytes_in += len(chunk)
        if self._fold.failed and len(self.failure) + len(chunk) <= MAX_FAILURE_BYTES:
            self.failure += chunk
        return chunk

    def end(self) -> bytes:
        """Nothing is ever held."""
        self._ended = True
        return b""

    def _ending(self) -> Ending:
        return Ending.COMPLETE if self._ended else Ending.TRUNCATED


def reader_for(
    fold: Fold, *, status: int, content_type: str, content_encoding: str
) -> AnswerReader:
    """The reader for an answer with these headers."""
    if status >= 400:
        return UnscannedReader(fold, failed=True)
    if content_encoding.strip().lower() not in ("", "identity"):
        return UnscannedReader(fold, failed=False)
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "text/event-stream":
        return StreamReader(fold)
    if media_type == "application/json" or media_type.endswith("+json"):
        return JsonReader(fold)
    return UnscannedReader(fold, failed=False)
