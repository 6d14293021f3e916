"""Where each kept hash was seen: a table of fixed size in which the oldest makes room.

A hash has a bucket of eight slots. A slot packs 40 bits of the hash with the 23-bit number of the
text that had it last, and whether another tenant had it too: 9 bytes a slot with what belongs to
the bucket, 12 an entry at the load the table is made for. Texts go out in the order they came, and
their entries with them, once the texts after them are as much as the engine's memory can hold. A
slot is reused when its text has gone or, in a full bucket, when it is the oldest. One more word a
bucket has a bit for each of its hashes, so that nine of ten questions end there.

Who asks later is told only of text that exactly one other tenant sent. Text that two sent says
nothing about where it was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.core.fingerprint.shingles import Hashes

BATCH: Final = 1024  # entries written in one step: under a millisecond

_SLOTS: Final = 8
_LOAD: Final = 0.75  # of the slots, when the memory of the engine is full of distinct text
_LEAST_VOLUME: Final = 16  # entries that a text counts as, so that the number of texts has a bound
_FEWEST_TEXTS: Final = 1024
# A slot, from its low end: the text's number, whether it was shared, the hash's high bits.
_REFS: Final = 2**23
_SHARED: Final = np.uint64(_REFS)
_TAG_AT: Final = 24
_TAG_PLACE: Final = np.uint64(_TAG_AT)
_REF_MASK: Final = np.uint32(_REFS - 1)
_BIT_SHIFT: Final = 58  # six bits of a hash name its bit in the bucket's word
_LOW_HALF: Final = np.uint64(2**32 - 1)
_HALF: Final = np.uint64(32)

# Which slot of a bucket a new entry takes: that of the same hash, else an empty or the oldest.
_SAME: Final = np.uint32(2 * _REFS)
_EMPTY: Final = np.uint32(_REFS)


class Kind(IntEnum):
    """What a text was. Answers to like questions are alike, so they need longer runs."""

    PROMPT = 0
    ANSWER = 1


class Hit(NamedTuple):
    """A window of an answer that one other tenant alone sent."""

    at: int  # where in the answer
    hash: int
    tenant: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class _Rows:
    """The buckets of some hashes; a column for each slot."""

    buckets: NDArray[np.int64]
    slots: NDArray[np.uint64]
    ages: NDArray[np.uint32]  # of the slots' texts; ``_EMPTY`` where there is none
    matches: NDArray[np.bool_]  # live slots with this very hash
    tenants: NDArray[np.int32]
    kinds: NDArray[np.uint8]

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Which slots more than one tenant had."""
        shared: NDArray[np.bool_] = (self.slots & _SHARED) != 0
        return shared


class Index:
    """What is remembered for one backend: at most ``capacity`` hashes that differ.

    Written and read on one thread. Steps are short: entries are written in batches.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._volume_left = capacity
        self._buckets = max(1, int(capacity / _LOAD / _SLOTS))
        self._slots = np.zeros((self._buckets, _SLOTS), np.uint64)
        self._bits = np.zeros(self._buckets, np.uint64)
        self._bits_view = self._bits.data
        texts = capacity // _LEAST_VOLUME
        size = min(_REFS, max(_FEWEST_TEXTS, 1 << texts.bit_length()))
        self._owners = np.zeros(size, np.int32)
        self._kinds = np.zeros(size, np.uint8)
        self._volumes = np.zeros(size, np.uint32)
        self._next = 1
        self._live = 0

    @property
    def nbytes(self) -> int:
        """Memory it takes, all of it from the start."""
        arrays = (self._slots, self._bits, self._owners, self._kinds, self._volumes)
        return sum(array.nbytes for array in arrays)

    @property
    def texts(self) -> int:
        """Texts it remembers now."""
        return self._live

    def add(self, tenant: int, kind: Kind, hashes: Hashes) -> Iterator[None]:
        """Remember a text by its kept hashes, none twice; every step writes one batch.

        What the tenant sent before is dated anew and takes no room: a conversation sends its
        history with every turn.
        """
        text = self._open(tenant, kind)
        new = 0
        for start in range(0, len(hashes), BATCH):
            new += self._write(text, tenant, hashes[start : start + BATCH])
            yield
        self._charge(text, new)

    def hits(self, hashes: Hashes, first: int, tenant: int) -> list[Hit]:
        """Windows that one tenant alone sent, and not ``tenant``; ``first`` is where they begin."""
        bits = self._bits[self._bucket(hashes)] >> (hashes >> np.uint64(_BIT_SHIFT))
        return self._sole(hashes, np.flatnonzero(bits & np.uint64(1)), first, tenant)

    def hits_of_few(self, hashes: list[int], first: int, tenant: int) -> list[Hit]:
        """The same for the few windows a token adds, where numpy's calls cost more."""
        bits, buckets = self._bits_view, self._buckets
        places = [
            place
            for place, value in enumerate(hashes)
            if bits[(value & 0xFFFFFFFF) * buckets >> 32] >> (value >> _BIT_SHIFT) & 1
            and self._has_tag(value)
        ]
        if not places:
            return []
        return self._sole(np.array(hashes, np.uint64), np.array(places), first, tenant)

    def _has_tag(self, value: int) -> bool:
        slots = self._slots[(value & 0xFFFFFFFF) * self._buckets >> 32].tolist()
        return any(slot >> _TAG_AT == value >> _TAG_AT for slot in slots)

    def _sole(self, hashes: Hashes, places: NDArray[np.intp], first: int, tenant: int) -> list[Hit]:
        """Of the windows at ``places`` those that one other tenant alone sent."""
        if not len(places):
            return []
        rows = self._rows(hashes[places])
        foreign = rows.matches & ~rows.shared & (rows.tenants != tenant)
        return [
            Hit(
                first + int(places[row]),
                int(hashes[places[row]]),
                int(rows.tenants[row, column]),
                Kind(int(rows.kinds[row, column])),
            )
            for row, column in zip(*np.nonzero(foreign), strict=True)
        ]

    def _bucket(self, hashes: Hashes) -> NDArray[np.int64]:
        return ((hashes & _LOW_HALF) * np.uint64(self._buckets) >> _HALF).astype(np.int64)

    def _rows(self, hashes: Hashes) -> _Rows:
        buckets = self._bucket(hashes)
        slots = self._slots[buckets]
        refs = slots.astype(np.uint32) & _REF_MASK
        ages = (np.uint32(self._next + _REFS - 1) - refs) & _REF_MASK
        ages[slots == 0] = _EMPTY
        matches = (slots >> _TAG_PLACE == _tags(hashes)) & (ages < self._live)
        texts = refs & np.uint32(len(self._owners) - 1)
        return _Rows(buckets, slots, ages, matches, self._owners[texts], self._kinds[texts])

    def _open(self, tenant: int, kind: Kind) -> int:
        if self._live == len(self._owners):
            self._forget()
        ref = self._next
        self._next = (ref + 1) % _REFS
        self._live += 1
        at = ref % len(self._owners)
        self._owners[at], self._kinds[at], self._volumes[at] = tenant, kind, 0
        return ref

    def _charge(self, ref: int, volume: int) -> None:
        if (self._next - 1 - ref) % _REFS >= self._live:
            return  # it went while it was being written
        counted = max(volume, _LEAST_VOLUME)
        self._volumes[ref % len(self._volumes)] = counted
        self._volume_left -= counted
        while self._volume_left < 0 and self._live > 1:
            self._forget()

    def _forget(self) -> None:
        oldest = (self._next - self._live) % len(self._volumes)
        self._volume_left += int(self._volumes[oldest])
        self._live -= 1

    def _write(self, ref: int, tenant: int, hashes: Hashes) -> int:
        """How many of these entries are new."""
        entries = hashes >> _TAG_PLACE << _TAG_PLACE | np.uint64(ref)
        kind = self._kinds[ref % len(self._kinds)]
        new, left = 0, np.arange(len(hashes))
        while len(left):
            # Entries of one bucket go one after the other: each must see the one before it.
            _, turn = np.unique(self._bucket(hashes[left]), return_index=True)
            now = left[turn]
            rows = self._rows(hashes[now])
            own = rows.matches & (rows.tenants == tenant)
            is_shared = (rows.matches & (rows.shared | ~own)).any(axis=1)
            columns = (rows.ages + rows.matches * _SAME).argmax(axis=1)
            # An answer that quotes its own prompt does not turn the prompt into an answer.
            goes = (own & (rows.kinds < kind)).sum(axis=1) == 0
            written = entries[now] | is_shared * _SHARED
            self._slots[rows.buckets[goes], columns[goes]] = written[goes]
            self._note(rows.buckets[goes])
            new += len(now) - int(rows.matches.any(axis=1).sum())
            left = np.delete(left, turn)
        return new

    def _note(self, buckets: NDArray[np.int64]) -> None:
        """Bring the words of buckets up to date with their slots."""
        marked = np.uint64(1) << (self._slots[buckets] >> np.uint64(_BIT_SHIFT))
        self._bits[buckets] = np.bitwise_or.reduce(marked, axis=1)


def _tags(hashes: Hashes) -> NDArray[np.uint64]:
    """What a slot with this hash holds of it, as a column."""
    return (hashes >> _TAG_PLACE)[:, None]
