"""Work on a prompt that admission did not need, done while the engine prefills it.

It begins a moment after the request: on the same cores it would otherwise delay the sending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from gateway.core import prefixes
from gateway.dialects.prompt_text import PROMPT_MEMBERS
from gateway.edge.recollection import Recollection
from gateway.types import ParsedRequest, PromptLength

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt's chain hashes, and the bytes they were taken over."""

    hashes: tuple[bytes, ...]
    size: int


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


@dataclass(frozen=True, slots=True)
class Shadow:
    """What is still to be known of a prompt.

    ``count`` is exact, where a bound admitted the prompt; ``new_share``, where TTFT is judged, is
    the share of it that no earlier prompt of the tenant began with; ``unseen``, where cached
    tokens are judged, the text its tenant never sent before; ``watch`` remembers it.
    """

    count: Later[PromptLength] | None = None
    new_share: Later[float] | None = None
    unseen: Recollection | None = None
    watch: Beginning | None = None

    def begin(self) -> None:
        """The request should be with the engine: start what there is to do."""
        for work in (self.count, self.new_share, self.unseen, self.watch):
            if work is not None:
                work.begin()


def prefix_of(request: ParsedRequest, tenant_key: bytes) -> Prefix:
    """Chain hashes over the prompt-bearing members of the body, in the order engines render them.

    Work for a thread: about 2 ms a megabyte.
    """
    body = request.body
    text = msgspec.json.encode([body[name] for name in PROMPT_MEMBERS if name in body])
    return Prefix(prefixes.chain(text, tenant_key), len(text))
