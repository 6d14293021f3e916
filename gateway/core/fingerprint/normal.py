"""Text in the one form that shingles are taken of: small letters, digits, single spaces.

Everything else that is ASCII becomes a space and spaces in a row become one, so that Markdown,
JSON and line breaks do not hide a copy. Bytes above ASCII stay as UTF-8 has them: what counts is
that prompts and answers are treated alike, and that no regular expression is needed (2 to 3 ms a
megabyte against 47).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

SLICE_CHARS: Final = 2**14  # of text handled in one step: at most 64 kB of UTF-8
_SPACE: Final = 0x20
_SMALL: Final = 64  # bytes; below this numpy's calls cost more than a loop


def _normal_byte(byte: int) -> int:
    if byte >= 0x80 or chr(byte).isalnum():
        return ord(chr(byte).lower()) if byte < 0x80 else byte
    return _SPACE


_TABLE: Final = bytes(map(_normal_byte, range(256)))


class Normaliser:
    """Brings a text that comes in pieces into normal form; cuts make no difference."""

    __slots__ = ("_after_space",)

    def __init__(self) -> None:
        self._after_space = True  # so that no text begins with a space

    def feed(self, text: str) -> bytes:
        """The next piece's bytes in normal form. Meant for pieces of ``SLICE_CHARS`` at most."""
        data = text.encode("utf-8", "surrogatepass").translate(_TABLE)
        if len(data) < _SMALL:
            return self._few(data)
        codes = np.frombuffer(data, np.uint8)
        spaces = codes == _SPACE
        again = np.empty_like(spaces)  # a space after a space
        again[0] = self._after_space and spaces[0]
        np.logical_and(spaces[1:], spaces[:-1], out=again[1:])
        self._after_space = bool(spaces[-1])
        return codes[~again].tobytes() if again.any() else data

    def _few(self, data: bytes) -> bytes:
        if not data:
            return data
        words = data.split()
        begins, ends = data[0] == _SPACE, data[-1] == _SPACE
        head = b" " if begins and not self._after_space else b""
        self._after_space = ends
        if not words:
            return head
        return head + b" ".join(words) + (b" " if ends else b"")


def normal_slices(segments: Iterable[str]) -> Iterator[bytes]:
    """Segments, parted by a space, in normal form and in slices of bounded size."""
    normaliser = Normaliser()
    for text in gathered(segments):
        for start in range(0, len(text), SLICE_CHARS):
            yield normaliser.feed(text[start : start + SLICE_CHARS])


def gathered(segments: Iterable[str]) -> Iterator[str]:
    """Segments joined to texts worth handling: a prompt may be a million short ones."""
    held: list[str] = []
    size = 0
    for segment in segments:
        held += (segment, " ")
        size += len(segment) + 1
        if size >= SLICE_CHARS:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)
