"""Keyed hashes of every 64-byte window of a text, and the sample of them that is worth keeping.

The hash of a window is a polynomial over keyed byte values mod 2^64, from prefix sums (Karp and
Rabin's, whose base is odd here and so has an inverse), then mixed. Sampling is winnowing
(Schleimer, Wilkerson, Aiken 2003): of every ``SPAN`` windows in a row the least hash is kept. Two
texts that share ``WINDOW + SPAN - 1`` bytes therefore share a kept hash, wherever they were cut,
at a density of 2 / (SPAN + 1).

Without the key, hashes say nothing about the text. Work goes in slices that fit a processor's
cache: about a millisecond each, and most of it outside the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from gateway.core.fingerprint.normal import normal_slices

Hashes = NDArray[np.uint64]

WINDOW: Final = 64  # bytes of normal text under one hash
SPAN: Final = 20  # windows of which one is kept, at least
BYTES_PER_TOKEN: Final = 4  # of normal text, about: English has more, code fewer
OVERLAP: Final = WINDOW + SPAN - 2  # bytes by which slices overlap, so that no span is missed

_BITS: Final = 64
_MASK: Final = 2**_BITS - 1
_SLICE: Final = 2**15  # bytes hashed in one call, at least; a piece of normal text may add 64 kB
_MOST_BYTES: Final = 2**17
_PLACE_MASK: Final = np.uint64(_MOST_BYTES - 1)  # numbers the windows of one call
_FOLD: Final = 32
_MIX: Final = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd (Knuth's multiplicative hash)


def entries_for(tokens: int) -> int:
    """How many hashes are kept of so many tokens of prompt."""
    return int(tokens * BYTES_PER_TOKEN * 2 / (SPAN + 1))


class Scheme:
    """The hash function under one key. Making one takes some milliseconds."""

    __slots__ = ("_arrives", "_base", "_inverse", "_inverses", "_leaves", "_powers", "_table")

    def __init__(self, key: bytes) -> None:
        stream = b"".join(
            blake2b(key=key[:64], person=b"shingles", salt=place.to_bytes(8, "little")).digest()
            for place in range(33)  # 64 bytes each: 256 byte values and the base
        )
        drawn = np.frombuffer(stream, np.uint64)
        self._table = drawn[:256].copy()
        self._base = int(drawn[256]) | 1
        self._inverse = pow(self._base, -1, 2**_BITS)
        self._powers = _powers(self._base, _MOST_BYTES)
        self._inverses = _powers(self._inverse, _MOST_BYTES)
        self._leaves = self._table.tolist()
        top = int(self._powers[WINDOW - 1])
        self._arrives = [value * top & _MASK for value in self._leaves]

    def hashes(self, data: bytes) -> Hashes:
        """The hash of every window of ``data``, at most 128 kB."""
        size = len(data)
        if size < WINDOW:
            return np.empty(0, np.uint64)
        sums = self._table[np.frombuffer(data, np.uint8)]
        sums *= self._powers[:size]
        np.cumsum(sums, out=sums)
        windows = sums[WINDOW - 1 :].copy()
        windows[1:] -= sums[:-WINDOW]
        windows *= self._inverses[: size - WINDOW + 1]
        windows ^= windows >> np.uint64(_FOLD)
        windows *= np.uint64(_MIX)
        return windows

    def roll(self, state: int, leaving: bytes, arriving: bytes) -> tuple[int, list[int]]:
        """The same, byte by byte, for the few bytes of a token, where numpy's calls cost more.

        ``state`` is the polynomial of the window before, ``leaving`` its first bytes. Returns the
        new state and the hashes.
        """
        hashes = []
        leaves, arrives, inverse = self._leaves, self._arrives, self._inverse
        for old, new in zip(leaving, arriving, strict=True):
            state = ((state - leaves[old]) * inverse + arrives[new]) & _MASK
            hashes.append((state ^ state >> _FOLD) * _MIX & _MASK)
        return state, hashes

    def state(self, window: bytes) -> int:
        """The polynomial of one window, for ``roll`` to start from."""
        state = 0
        for code in reversed(window):
            state = (state * self._base + self._leaves[code]) & _MASK
        return state


def _powers(base: int, count: int) -> Hashes:
    """base^0, base^1, ... mod 2^64."""
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


def winnow(hashes: Hashes) -> NDArray[np.intp]:
    """Places of the hashes to keep: the least of every span, of equal ones the last.

    A text of fewer windows than a span keeps its least.
    """
    count = len(hashes)
    if not count:
        return np.empty(0, np.intp)
    # The place in the low bits makes the least hash tell where it is.
    least: Hashes = (hashes | _PLACE_MASK) - np.arange(count).astype(np.uint64)
    width, span = 1, min(SPAN, count)
    while width < span:
        step = min(width, span - width)
        least = np.minimum(least[:-step], least[step:])
        width += step
    changes = np.flatnonzero(least[1:] != least[:-1]) + 1
    kept: Hashes = least[np.concatenate(([0], changes))]
    return (_PLACE_MASK - (kept & _PLACE_MASK)).astype(np.intp)


def sample(scheme: Scheme, segments: Iterable[str]) -> Hashes:
    """The kept hashes of a text. 681,000 tokens take some 30 ms: work for a thread."""
    kept, done = [], -1
    for begin, data in _overlapping(segments, OVERLAP):
        hashes = scheme.hashes(data)
        places = winnow(hashes)
        fresh = places[places + begin > done]  # the overlap's were kept before
        if len(fresh):
            done = int(fresh[-1]) + begin
            kept.append(hashes[fresh])
    return _distinct(_joined(kept, np.uint64))


def _distinct(hashes: Hashes) -> Hashes:
    """Each once, in order. ``np.unique`` takes 20 times as long, in one call."""
    hashes.sort()
    first = np.ones(len(hashes), np.bool_)
    np.not_equal(hashes[1:], hashes[:-1], out=first[1:])
    distinct: Hashes = hashes[first]
    return distinct


class KnownText:
    """Whether a window occurs anywhere in a text: half of each hash, sorted.

    4 bytes a byte of text; one in 2^32 / size unknown windows is taken for known.
    """

    __slots__ = ("_halves",)

    def __init__(self, scheme: Scheme, segments: Iterable[str]) -> None:
        halves = [_halves(scheme.hashes(data)) for _, data in _overlapping(segments, WINDOW - 1)]
        self._halves = _joined(halves, np.uint32)
        self._halves.sort()

    def holds(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of the windows with these hashes are in the text."""
        if not len(self._halves):
            return np.zeros(len(hashes), np.bool_)
        wanted = _halves(hashes)
        places = np.searchsorted(self._halves, wanted)
        found: NDArray[np.bool_] = self._halves[np.minimum(places, len(self._halves) - 1)] == wanted
        return found


def _halves(hashes: Hashes) -> NDArray[np.uint32]:
    return (hashes >> np.uint64(_FOLD)).astype(np.uint32)


def _overlapping(segments: Iterable[str], overlap: int) -> Iterator[tuple[int, bytes]]:
    """A text's slices: where each begins, and its bytes with the end of the one before.

    Small segments are gathered, so that a conversation of short turns costs few calls.
    """
    begin, held = 0, bytearray()
    for piece in normal_slices(segments):
        held += piece
        if len(held) > _SLICE:
            yield begin, bytes(held)
            begin += len(held) - overlap
            del held[:-overlap]
    yield begin, bytes(held)


_Number = TypeVar("_Number", bound=np.generic)


def _joined(parts: list[NDArray[_Number]], kind: type[_Number]) -> NDArray[_Number]:
    return np.concatenate(parts) if parts else np.empty(0, kind)
