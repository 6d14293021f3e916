"""KV memory in pages: who wrote which slot, and what a page still holds after it was freed.

Freeing returns a page to the free list and touches nothing else; that memory keeps its last
writer's tokens until someone overwrites the slot is what every leak of this class rests on. Slots
are modelled one by one, so a page half overwritten is half stale.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

EMPTY = -1  # the token of a slot nobody has written


class FreeOrder(StrEnum):
    """Which free page is handed out next."""

    FIFO = "fifo"
    LIFO = "lifo"
    RANDOM = "random"


class PoolExhausted(Exception):
    """Fewer pages are free than were asked for. Nothing was allocated."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page as it lies in memory.

    ``position`` is the logical position of slot 0 in the sequence that last wrote here;
    ``write_epoch`` counts the writes to the page since the engine started.
    """

    owners: tuple[str, ...]
    tokens: tuple[int, ...]
    position: int
    write_epoch: int


class PageMemory:
    """A pool of fixed-size pages. Page ids are 0 to ``page_count`` - 1.

    ``capacity`` is tokens and rounds down to whole pages. ``rng`` is used by RANDOM order only.
    """

    def __init__(
        self,
        capacity: int,
        page_size: int,
        *,
        order: FreeOrder = FreeOrder.FIFO,
        rng: random.Random | None = None,
        scrub_on_free: bool = False,
    ) -> None:
        if page_size < 1 or capacity < page_size:
            raise ValueError("a pool needs at least one page of at least one token")
        self.page_size = page_size
        self.page_count = capacity // page_size
        self._order = order
        self._rng = rng or random.Random(0)
        self._scrub = scrub_on_free
        self._free = deque(range(self.page_count))
        self._held = bytearray(self.page_count)
        slots = self.page_count * page_size
        self._owners = [""] * slots
        self._tokens = [EMPTY] * slots
        self._positions = [0] * self.page_count
        self._epochs = [0] * self.page_count

    @property
    def capacity(self) -> int:
        """Tokens the whole pool holds."""
        return self.page_count * self.page_size

    @property
    def free_pages(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that ``tokens`` tokens need."""
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Hand out ``count`` pages with whatever is in them. Raises PoolExhausted."""
        if count > len(self._free):
            raise PoolExhausted(f"{count} pages asked for, {len(self._free)} free")
        taken = [self._take() for _ in range(count)]
        for page in taken:
            self._held[page] = 1
        return taken

    def _take(self) -> int:
        if self._order is FreeOrder.LIFO:
            return self._free.pop()
        if self._order is FreeOrder.RANDOM:
            self._free.rotate(-self._rng.randrange(len(self._free)))
        return self._free.popleft()

    def release(self, pages: Sequence[int]) -> None:
        """Return held pages. Raises ValueError, and frees none, if one is not held."""
        if len(set(pages)) != len(pages) or not all(self._held[page] for page in pages):
            raise ValueError("a page was freed that nobody holds")
        for page in pages:
            self._held[page] = 0
            if self._scrub:
                self._scrub_page(page)
        self._free.extend(pages)

    def _scrub_page(self, page: int) -> None:
        base = page * self.page_size
        self._owners[base : base + self.page_size] = [""] * self.page_size
        self._tokens[base : base + self.page_size] = [EMPTY] * self.page_size

    def write(self, table: Sequence[int], start: int, owner: str, tokens: Sequence[int]) -> None:
        """Write ``tokens`` at logical positions from ``start`` on, through a page table."""
        size, done = self.page_size, 0
        while done < len(tokens):
            index, offset = divmod(start + done, size)
            part = tokens[done : done + size - offset]
            page = table[index]
            base = page * size + offset
            self._tokens[base : base + len(part)] = part
            self._owners[base : base + len(part)] = [owner] * len(part)
            self._positions[page] = index * size
            self._epochs[page] += 1
            done += len(part)

    def copy_from(self, source: PageMemory, source_page: int, page: int) -> None:
        """Take over another pool's page whole, stale slots and all, as a transfer does."""
        size = self.page_size
        there, here = source_page * size, page * size
        self._owners[here : here + size] = source._owners[there : there + size]
        self._tokens[here : here + size] = source._tokens[there : there + size]
        self._positions[page] = source._positions[source_page]
        self._epochs[page] += 1

    def slot(self, table: Sequence[int], position: int) -> tuple[str, int]:
        """Owner and token of the slot a page table maps a logical position to."""
        index, offset = divmod(position, self.page_size)
        at = table[index] * self.page_size + offset
        return self._owners[at], self._tokens[at]

    def owners(self, table: Sequence[int], length: int) -> Iterator[str]:
        """The owners of logical positions 0 to ``length`` - 1."""
        size = self.page_size
        for index in range(self.pages_for(length)):
            base = table[index] * size
            yield from self._owners[base : base + min(size, length - index * size)]

    def page(self, page: int) -> Page:
        """A snapshot of one page."""
        base = page * self.page_size
        return Page(
            owners=tuple(self._owners[base : base + self.page_size]),
            tokens=tuple(self._tokens[base : base + self.page_size]),
            position=self._positions[page],
            write_epoch=self._epochs[page],
        )
