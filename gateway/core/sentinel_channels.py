"""Where the characters of an answer's channels stand, and cutting some of them out.

A channel's text is counted in characters from its beginning. Held events remember which of them
their strings show, so that a sentinel found in the text can be cut out of the events it spans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.core.sentinel import Numbers
from gateway.core.sentinel_scan import Found, Read, Scanner
from gateway.dialects import sse, wire
from gateway.dialects.channels import Path, Piece, pieces_of_body

# So many texts must have repeated all that came before until repeating is taken for the rule.
_SURE = 3


@dataclass(frozen=True, slots=True)
class Watch:
    """What to look for in one answer. ``preamble`` introduces our markers and goes with them.

    ``repeats``: events may show the whole text so far (SGLang's /generate).
    """

    read: Read
    first_words: frozenset[int]
    preamble: str = ""
    repeats: bool = False

    def scanner(self) -> Scanner:
        """For one text."""
        return Scanner(self.read, self.first_words)

    def channel(self) -> Channel:
        """For one text that grows."""
        return RepeatingChannel(self) if self.repeats else Channel(self.scanner())


@dataclass(slots=True)
class Held:
    """An event, or a whole body, and what is to be cut out of it before it is released."""

    raw: bytes
    is_event: bool
    cuts: dict[Path, set[tuple[int, int]]] = field(default_factory=dict)
    nulls: set[Path] = field(default_factory=set)

    def rendered(self, preamble: str) -> bytes:
        """The bytes to release: where nothing was cut, those that came."""
        if not self.cuts and not self.nulls:
            return self.raw
        data = sse.data_of(self.raw) if self.is_event else self.raw
        value = wire.decode_any(data)
        edits: dict[Path, str | None] = dict.fromkeys(self.nulls)
        for path, cuts in self.cuts.items():
            edits[path] = _without(_at(value, path), cuts, preamble)
        try:
            for path, text in edits.items():
                data = bytes(wire.edit_at(data, path, _to(text)))
        except (msgspec.MsgspecError, UnicodeEncodeError):  # NaN, half a surrogate: written anew
            for path, text in edits.items():
                _at(value, path[:-1])[path[-1]] = text
            data = json.dumps(value).encode()
        return sse.with_data(self.raw, data) if self.is_event else data


@dataclass(frozen=True, slots=True)
class Span:
    """A channel's characters from ``start`` to ``end``: they are all of the string at ``path``."""

    held: Held
    path: Path
    start: int
    end: int
    tokenwise: bool = False

    def cut(self, start: int, end: int) -> None:
        """Cut the channel's characters from ``start`` to ``end`` as far as they stand here."""
        if end <= self.start or start >= self.end:
            return
        if self.tokenwise:
            self.held.nulls.add(self.path)
            return
        cut = max(start, self.start) - self.start, min(end, self.end) - self.start
        self.held.cuts.setdefault(self.path, set()).add(cut)


class Channel:
    """One growing text: its scanner, and where those of its characters stand that are held.

    ``last`` is the number of the last event with text of this channel.
    """

    __slots__ = ("last", "scanner", "spans")

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.spans: tuple[Span, ...] = ()
        self.last = 0

    def take(self, held: Held, piece: Piece) -> tuple[list[Found], Sequence[Span]]:
        """The sentinels that the piece completes, and where this channel's characters stand."""
        start = self.scanner.end
        found = self.scanner.feed(piece.text)
        return found, self.note(Span(held, piece.path, start, self.scanner.end, piece.tokenwise))

    def note(self, span: Span) -> Sequence[Span]:
        """Remember where characters stand, and forget what nothing can depend on any more."""
        spans = (*self.spans, span)
        needed = self.scanner.open_from
        self.spans = tuple(each for each in spans if needed is not None and each.end > needed)
        return spans

    def cut(self, found: Found, spans: Sequence[Span]) -> None:
        """Cut a sentinel out of wherever it stands."""
        for span in spans:
            span.cut(found.start, found.end)

    @property
    def holds(self) -> Held | None:
        """The first event that must not be released yet."""
        return self.spans[0].held if self.spans else None


class RepeatingChannel(Channel):
    """A text that each event may repeat from its beginning.

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

    def take(self, held: Held, piece: Piece) -> tuple[list[Found], Sequence[Span]]:
        """See ``Channel``; what was cut out before is cut out of the repetition too."""
        text = piece.text
        if not text.startswith(self._before):
            if self._repeats < _SURE:
                self._repeats, self._before = -1, ""
            else:
                self.scanner, self._before, self._gone = self._watch.scanner(), "", []
        if self._repeats < 0:
            return super().take(held, piece)
        self._repeats += bool(self._before) and len(text) > len(self._before)
        found = self.scanner.feed(text[len(self._before) :])
        self._before = text
        span = Span(held, piece.path, 0, self.scanner.end, piece.tokenwise)
        for start, end in self._gone:
            span.cut(start, end)
        return found, self.note(span)

    def cut(self, found: Found, spans: Sequence[Span]) -> None:
        """See ``Channel``; later repetitions lose it too."""
        super().cut(found, spans)
        self._gone.append((found.start, found.end))


def sentinels_in(value: Any, watch: Watch) -> frozenset[Numbers]:
    """The sentinels that stand in the texts of a JSON value: about 50 ms a megabyte."""
    return frozenset(
        found.sighting.numbers
        for piece in pieces_of_body(value)
        for found in watch.scanner().feed(piece.text)
    )


def _to(value: str | None) -> Callable[[msgspec.Raw], msgspec.Raw]:
    written = wire.encode(value)
    return lambda _: written


def _without(text: str, cuts: set[tuple[int, int]], preamble: str) -> str:
    for start, end in sorted(cuts, reverse=True):
        head = text[:start].removesuffix(preamble).removesuffix(preamble.lstrip())
        text = head + text[end:]
    return text


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value
