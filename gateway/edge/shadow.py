"""Work on a prompt that admission did not need, done while the engine prefills it.

It begins a moment after the request: on the same cores it would otherwise delay the sending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from gateway.edge.recollection import Recollection
from gateway.types import PromptLength

T = TypeVar("T")


class Later(Generic[T]):
    """A task that is spawned when it is wanted first: by ``begin``, or by whoever awaits it."""

    def __init__(self, spawn: Callable[[], asyncio.Task[T]]) -> None:
        self._spawn = spawn
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> asyncio.Task[T]:
        """Spawn it unless it was."""
        if self._task is None:
            self._task = self._spawn()
        return self._task

    async def result(self) -> T:
        """What it comes to; begun here where nobody did."""
        return await self.begin()

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._task is not None and self._task.done()


class Beginning(Protocol):
    """Work that waits for the request to be with the engine."""

    def begin(self) -> object:
        """Start it, unless it was."""


class Shadow(Struct, frozen=True):
    """What is still to be known of a prompt.

    ``count`` is exact, where a bound admitted the prompt; ``past``, where TTFT or cached tokens
    are judged, is what its tenant sent before; ``watch`` remembers it.
    """

    count: Later[PromptLength] | None = None
    past: Recollection | None = None
    watch: Beginning | None = None

    def begin(self) -> None:
        """The request should be with the engine: start what there is to do."""
        for work in (self.count, self.past, self.watch):
            if work is not None:
                work.begin()
