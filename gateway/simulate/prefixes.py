"""The prefill leg's prefix cache: whole pages shared by sequences that begin alike.

A page's key is a chain: the salt, then every page before it, then its own tokens. So two
requests share pages only while their tokens are the same from the first one on and, unless a
fault says otherwise, their salt is too.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.simulate.pages import PageMemory, PoolExhausted


@dataclass(slots=True)
class _Entry:
    page: int
    salt: str
    users: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """Pages found for a prompt's beginning, pinned until ``PrefixCache.unpin``."""

    keys: tuple[bytes, ...]
    pages: tuple[int, ...]
    foreign: bool  # some page was filled under another salt


class PrefixCache:
    """Owns the pages it holds; least recently used ones go back to the pool when it runs short.

    With ``honours_salt`` off, salts do not separate tenants.
    """

    def __init__(self, memory: PageMemory, *, enabled: bool, honours_salt: bool) -> None:
        self._memory = memory
        self._enabled = enabled
        self._honours_salt = honours_salt
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    @property
    def held_pages(self) -> int:
        """Pages that belong to the cache."""
        return len(self._entries)

    def match(self, salt: str, tokens: Sequence[int]) -> Match:
        """The longest cached beginning, leaving at least one token to prefill."""
        keys: list[bytes] = []
        pages: list[int] = []
        foreign = False
        for key in self._keys(salt, tokens[:-1]):
            entry = self._entries.get(key)
            if entry is None:
                break
            entry.users += 1
            self._entries.move_to_end(key)
            keys.append(key)
            pages.append(entry.page)
            foreign = foreign or entry.salt != salt
        return Match(tuple(keys), tuple(pages), foreign)

    def unpin(self, match: Match) -> None:
        """Let go of a match's pages; they may be evicted again."""
        for key in match.keys:
            self._entries[key].users -= 1

    def allocate(self, count: int) -> list[int]:
        """Pages from the pool, evicting unused entries where needed. Raises PoolExhausted."""
        missing = count - self._memory.free_pages
        if missing > 0:
            unused = [key for key, entry in self._entries.items() if not entry.users]
            if len(unused) < missing:
                raise PoolExhausted(f"{missing} pages short, {len(unused)} evictable")
            self._memory.release([self._entries.pop(key).page for key in unused[:missing]])
        return self._memory.allocate(count)

    def adopt(self, salt: str, tokens: Sequence[int], table: Sequence[int], cached: int) -> None:
        """Take over a finished prefill's pages; those that are not whole or known are freed.

        The first ``cached`` pages of ``table`` are the cache's already.
        """
        spare = set(table[cached:])
        for index, key in enumerate(self._keys(salt, tokens)):
            if index >= cached and key not in self._entries:
                self._entries[key] = _Entry(table[index], salt)
                spare.discard(table[index])
        self._memory.release([page for page in table[cached:] if page in spare])

    def flush(self) -> None:
        """Free every page that nobody uses at the moment."""
        for key in [key for key, entry in self._entries.items() if not entry.users]:
            self._memory.release([self._entries.pop(key).page])

    def _keys(self, salt: str, tokens: Sequence[int]) -> Iterator[bytes]:
        """The chain keys of the whole pages in ``tokens``."""
        if not self._enabled:
            return
        size = self._memory.page_size
        key = salt.encode() if self._honours_salt else b""
        for start in range(0, len(tokens) - size + 1, size):
            chunk = array("q", tokens[start : start + size]).tobytes()
            key = hashlib.blake2b(
                chunk, key=hashlib.blake2b(key, digest_size=32).digest(), digest_size=16
            ).digest()
            yield key
