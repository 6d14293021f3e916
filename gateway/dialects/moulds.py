"""Events that differ in one string alone, recognised without reading their JSON.

An engine writes the same bytes around each piece of a text. Where such an event was read once, the
next one of its mould says the same but for the string: what has no quote in it and is one JSON
string cannot have changed anything else. Recognising one takes a tenth of decoding it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.dialects.channels import Key, Path, Piece

_MOST_BYTES: Final = 2**16  # of an event that is recognised
_KEPT: Final = 4  # moulds, the last ones learnt first: choices take turns
_string: Final = msgspec.json.Decoder(str)


class Mould(NamedTuple):
    """What is before the string, what after, and whose text it is."""

    before: bytes
    after: bytes
    key: Key
    path: Path

    @classmethod
    def of(cls, raw: bytes, piece: Piece) -> Mould | None:
        """The mould of an event whose only text is the piece's, if its place is plain to see."""
        if piece.key is None or piece.tokenwise or b"\r" in raw or b"\\" in raw:
            return None
        if not piece.text.isascii() or not piece.text.strip().isalnum():
            return None
        before, *after = raw.split(b'"%b"' % piece.text.encode())
        if len(after) != 1:
            return None
        return cls(before + b'"', b'"' + after[0], piece.key, piece.path)


class Recognised(NamedTuple):
    """An event of a known mould: whose text, and what it says.

    ``as_written``: the text stands in the event as it is, without any escape.
    """

    mould: Mould
    text: str
    as_written: bool


class Moulds:
    """The moulds of one stream."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[Mould] = []

    def learn(self, raw: bytes, pieces: Sequence[Piece]) -> None:
        """Remember the mould of an event with these texts, if it has one."""
        if len(pieces) == 1 and (mould := Mould.of(raw, pieces[0])) is not None:
            self._kept = [mould, *self._kept[: _KEPT - 1]]

    def forget(self) -> None:
        """Know none any more."""
        self._kept = []

    def recognise(self, raw: bytes) -> Recognised | None:
        """``raw`` as one whole event of a known mould; None where it has to be read."""
        for mould in self._kept:
            before, after, *_ = mould
            if raw.startswith(before) and raw.endswith(after):
                begin, end = len(before), len(raw) - len(after)
                return _read(mould, raw[begin:end]) if begin <= end <= _MOST_BYTES else None
        return None


def _read(mould: Mould, written: bytes) -> Recognised | None:
    """What is written between the quotes; None where that is not all of one JSON string."""
    try:
        text = written.decode()
        if text.isprintable() and '"' not in text and "\\" not in text:  # as most are
            return Recognised(mould, text, True)
        if '"' in text:
            return None
        return Recognised(mould, _string.decode(b'"%b"' % written), False)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return None
