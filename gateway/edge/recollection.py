"""What of a prompt its tenant never sent before, looked up when the request is sent.

Not before: a request that is never sent leaves nothing in a cache. Not after: the next one may
already share its pages. One memory serves all backends, since some share their caches.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.core import attestation
from gateway.edge.counting import Threads

Found = tuple[str, ...]
Spawn = Callable[[Coroutine[Any, Any, Found], str], asyncio.Task[Found]]


class Recollections:
    """The memory of what was sent in this process's life, and the lookups that are under way."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._memory = attestation.PromptMemory()
        self.running: Counter[str] = Counter()  # by tenant
        self.raw: set[str] = set()  # tenants of plain prompts, which may hold what chats render

    def take(self, tenant: str, texts: Found) -> Found:
        """What of these texts is new; known from now on. Work for a thread where they are long."""
        chains = [attestation.chain(self._key, tenant, text) for text in texts]
        return attestation.unseen(texts, self._memory.take(chains))


class Recollection:
    """One prompt's lookup. ``begin`` when the request is sent."""

    def __init__(
        self, memory: Recollections, tenant: str, texts: Found, threads: Threads, spawn: Spawn
    ) -> None:
        self._memory = memory
        self._tenant = tenant
        self._texts = texts
        self._threads = threads
        self._spawn = spawn
        self._begun = False
        self._blurred = False  # a longer prompt of the same tenant was not in the memory yet
        self._found: Found = ()
        self._task: asyncio.Task[Found] | None = None

    def begin(self) -> None:
        """Look it up, unless that was begun: short texts in place, so in the order of sending."""
        if self._begun:
            return
        self._begun = True
        self._blurred = self._memory.running[self._tenant] > 0
        if sum(map(len, self._texts)) <= self._threads.inline_bytes:
            self._found = self._take()
        else:
            self._memory.running[self._tenant] += 1
            self._task = self._spawn(self._on_thread(), "recollection")

    async def result(self) -> Found | None:
        """The texts nobody could have cached for this tenant; None where that cannot be told."""
        self.begin()
        if self._task is not None:
            self._found = await self._task
        blurred = self._blurred or self._tenant in self._memory.raw
        return None if blurred else self._found

    def _take(self) -> Found:
        return self._memory.take(self._tenant, self._texts)

    async def _on_thread(self) -> Found:
        try:
            return await self._threads.on_thread(self._take)
        finally:
            self._memory.running[self._tenant] -= 1
