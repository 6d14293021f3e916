"""The text of an answer as it goes to the client, whatever the dialect.

A stream's released bytes are whole events (``AnswerReader.receive``), so what is heard here is what
the client reads at that moment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from gateway.dialects import sse
from gateway.dialects.channels import Piece, pieces_of_body, pieces_of_event
from gateway.dialects.moulds import Moulds

_DONE = b"[DONE]"


class Heard(NamedTuple):
    """A piece of the text of one channel; None: a text of its own, which is whole.

    A ``copy`` repeats what other pieces told already.
    """

    channel: Hashable | None
    text: str
    copy: bool = False


class AnswerText:
    """Takes an answer's bytes and tells its text.

    ``cumulative``: every event repeats its texts from the beginning, as SGLang's /generate does.
    ``complete`` is False once something could not be read.
    """

    def __init__(self, *, cumulative: bool = False) -> None:
        self._splitter = sse.Splitter()
        self._moulds = Moulds()
        self._before: dict[Hashable, str] = {}
        self._cumulative = cumulative
        self.complete = True

    def of_events(self, released: bytes) -> list[Heard]:
        """The texts in some whole events of a stream."""
        if not self._splitter.holds and (known := self._moulds.recognise(released)) is not None:
            return [Heard(known.mould.key, known.text)] if known.text else []
        heard: list[Heard] = []
        for event in self._splitter.receive(released):
            heard += self._of_event(event)
        return heard

    def _of_event(self, event: sse.Event) -> Iterable[Heard]:
        raw, oversized = event
        if oversized:
            self.complete = False
            return ()
        if (known := self._moulds.recognise(raw)) is not None:
            return [Heard(known.mould.key, known.text)] if known.text else ()
        data = sse.data_of(raw)
        if not data or data.strip() == _DONE:
            return ()
        pieces = self._pieces(pieces_of_event, _decoded(data))
        if not self._cumulative:
            self._moulds.learn(raw, pieces)
        return self._heard(pieces)

    def of_body(self, body: bytes) -> list[Heard]:
        """The texts of a whole JSON answer."""
        value = _decoded(body)
        if value is None:
            self.complete = False
        return [
            Heard(None, each.text, each.tokenwise) for each in self._pieces(pieces_of_body, value)
        ]

    def _pieces(self, pieces_of: Callable[[Any], list[Piece]], value: Any) -> list[Piece]:
        try:
            return pieces_of(value)
        except RecursionError:
            self.complete = False
            return []

    def _heard(self, pieces: Iterable[Piece]) -> Iterator[Heard]:
        for piece in pieces:
            copy = piece.key is None or piece.tokenwise
            text = self._fresh(piece) if self._cumulative and not copy else piece.text
            if text:
                yield Heard(piece.key, text, copy)

    def _fresh(self, piece: Piece) -> str:
        """What a text that is told again and again has more than last time."""
        before = self._before.get(piece.key, "")
        self._before[piece.key] = piece.text
        return piece.text.removeprefix(before)


def _decoded(data: bytes) -> Any:
    """The JSON value, read as leniently as engines write it; None where it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
