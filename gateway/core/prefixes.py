"""What of a text was sent before: chained digests of its beginnings, one a step.

Each digest covers all of the text before it, so the longest known chain is the longest common
beginning with any earlier text, to the step. Steps grow with their place in the text: they are
``STEP`` bytes at first and never more than 1/32 of what lies before them, so a text of 4 MB has
some 330.

XXH3 is fast, and no cryptographic hash. That is enough here: digests stay in this process, are
compared with nothing but each other, and whatever two texts a tenant makes collide, with the seed
unknown, only makes its own text look as if it had been sent before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice

from xxhash import xxh3_128

STEP = 256  # bytes of text in the first steps
DIGEST = 16  # bytes
_PER_LENGTH = 64  # a step is doubled where this many would lead to its place


def _every_end() -> Iterator[int]:
    at, step = 0, STEP
    while True:
        at += step
        yield at
        if at >= _PER_LENGTH * step:
            step *= 2


_ENDS = tuple(islice(_every_end(), 1024))  # where steps end; the last at 16 GiB


def seed(secret: bytes, tenant: str) -> int:
    """The tenant's own seed, 64 bits: no tenant's text looks like what another one sent."""
    return int.from_bytes(blake2b(tenant.encode(), key=secret, digest_size=8).digest())


def encoded(text: str) -> bytes:
    """A text as its digests are made of it: UTF-8, of half a surrogate pair too."""
    return text.encode("utf-8", "surrogatepass")


def chain(parts: Iterable[bytes], seed: int) -> list[bytes]:
    """The digests of a text that comes in parts, one a full step. About 5 GB/s."""
    digest = xxh3_128(seed=seed)
    found: list[bytes] = []
    length = 0
    for part in parts:
        view, start = memoryview(part), length
        length += len(part)
        at = 0
        for end in _ENDS[len(found) : bisect_right(_ENDS, length)]:
            digest.update(view[at : end - start])
            found.append(digest.digest())
            at = end - start
        digest.update(view[at:])
    return found


def reach(known_steps: int) -> int:
    """An upper bound on the bytes that a text shares with an earlier one.

    ``known_steps``: how many of its digests are known. The step after them may be shared in part.
    """
    return _ENDS[known_steps]


class PrefixMemory:
    """Digests lately seen on one backend: at least the last ``capacity`` steps, at most twice that.

    In two generations, so that a prompt is remembered in one call: when the young one is full, the
    old one is dropped. A step costs about 100 bytes; those of one prompt come on top.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def known_bytes(self, chained: Sequence[bytes]) -> int:
        """An upper bound on the bytes of this prompt's start that an earlier one shares."""
        return reach(bisect_left(chained, True, key=self._is_new))  # after a new one, all are

    def remember(self, chained: Sequence[bytes]) -> None:
        """Add a prompt that was sent to the backend."""
        if len(self._young) >= self._capacity:
            self._old, self._young = self._young, set()
        # Also what only the old one holds: it is in use, and must outlive it.
        self._young.update(chained)

    def _is_new(self, digest: bytes) -> bool:
        return digest not in self._young and digest not in self._old
