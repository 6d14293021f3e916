"""The ``swap`` fault: two live answers change places, as after a desynchronised connection."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = 0.25  # seconds an answer waits for another to change places with


class Swapper:
    """Pairs up answers of the same kind. An answer that stays alone keeps its own place.

    ``swapped`` counts the answers that left in another's place: the truth, never told in the API.
    """

    def __init__(self) -> None:
        self.swapped = 0
        self._waiting: dict[Hashable, tuple[Any, asyncio.Future[Any]]] = {}

    async def exchange(self, kind: Hashable, own: T) -> T:
        """The other answer of a pair, or ``own`` if none came in time."""
        if (first := self._waiting.pop(kind, None)) is not None:
            other, place = first
            place.set_result(own)
            self.swapped += 2
            return other  # type: ignore[no-any-return]
        mine = asyncio.get_running_loop().create_future()
        self._waiting[kind] = (own, mine)
        try:
            async with asyncio.timeout(PATIENCE):
                return await mine  # type: ignore[no-any-return]
        except TimeoutError:
            return own
        finally:
            if self._waiting.get(kind, (None, None))[1] is mine:
                del self._waiting[kind]
