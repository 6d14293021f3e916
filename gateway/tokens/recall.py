"""Remembered counts: agents send a growing history again and again, and pay for the new part.

Nothing of a text is kept, only a keyed digest and a number. The key is drawn from a secret of the
process and the tenant, so that no tenant can learn by timing what another one sent.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from threading import Lock

from blake3 import blake3

DIGEST_BYTES = 16
ENTRY_BYTES = 256  # of memory a remembered count takes, measured: digest, number, two links
SMALLEST_REMEMBERED = 256  # characters


class NeedsPatience(Exception):
    """What is left to count takes longer than was allowed for."""


class CountCache:
    """Counts by digest, the least recently used forgotten first. Shared between threads.

    ``max_bytes`` bounds its memory; 0 remembers nothing. ``secret`` is at most 64 bytes. Pieces
    under ``smallest`` characters are not remembered: counting them is as quick.
    """

    def __init__(self, max_bytes: int, secret: bytes, smallest: int = SMALLEST_REMEMBERED) -> None:
        self._room = max_bytes // ENTRY_BYTES
        self._secret = secret
        self.smallest = smallest
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def of_tenant(self, tenant: str, fresh: int | None = None) -> Recall | None:
        """What one count of this tenant's uses; None where nothing is remembered.

        ``fresh`` bounds the characters it may count that are not remembered.
        """
        if not self._room:
            return None
        key = blake2b(tenant.encode(), key=self._secret, digest_size=32).digest()
        return Recall(self, key, fresh)

    def get(self, digest: bytes) -> int | None:
        """The count, which is then the most recently used."""
        with self._lock:
            count = self._counts.get(digest)
            if count is not None:
                self._counts.move_to_end(digest)
            return count

    def put(self, digest: bytes, count: int) -> None:
        """Remember, at the cost of the oldest."""
        with self._lock:
            self._counts[digest] = count
            if len(self._counts) > self._room:
                self._counts.popitem(last=False)


class Recall:
    """A tenant's remembered counts during one count. For one thread at a time."""

    def __init__(self, cache: CountCache, key: bytes, fresh: int | None = None) -> None:
        self._cache = cache
        self._key = key
        self._fresh = fresh
        self.hits = 0
        self.misses = 0

    def digest(self, piece: str, tokenizer: bytes) -> bytes | None:
        """What a piece is remembered under, by tokenizer (16 bytes); None where it is too short.

        Keyed BLAKE3: a count must not be taken for that of another text, and it reads 9 GB/s.

        Raises ``UnicodeEncodeError`` for a lone surrogate.
        """
        if len(piece) < self._cache.smallest:
            return None
        return blake3(piece.encode(), key=self._key).update(tokenizer).digest(DIGEST_BYTES)

    def get(self, digest: bytes) -> int | None:
        """The count, if it is remembered."""
        count = self._cache.get(digest)
        if count is None:
            self.misses += 1
        else:
            self.hits += 1
        return count

    def afford(self, characters: int) -> None:
        """So many are counted anew. Raises ``NeedsPatience`` where that is too many by now."""
        if self._fresh is None:
            return
        self._fresh -= characters
        if self._fresh < 0:
            self.hits = self.misses = 0  # who counts it patiently tells them
            raise NeedsPatience

    def put(self, digest: bytes, count: int) -> None:
        """Remember a count."""
        self._cache.put(digest, count)
