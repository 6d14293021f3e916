"""What of a prompt its tenant sent before, looked up when the request is sent.

Not before: a request that is never sent leaves nothing in a cache. Not after: the next one may
already share its pages.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.core import attestation, prefixes
from gateway.core.prefixes import PrefixMemory
from gateway.dialects.prompt_text import prompt_parts
from gateway.edge.counting import Threads, quickly_rendered
from gateway.types import ParsedRequest

Texts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """``unseen``: texts nobody can have cached for this tenant; None where that cannot be told.

    ``new_share``: of the prompt's bytes, those that no earlier prompt of the tenant began with.
    """

    unseen: Texts | None = None
    new_share: float = 1.0


Spawn = Callable[[Coroutine[Any, Any, Known], str], asyncio.Task[Known]]


class Recollections:
    """The memory of what was sent in this process's life, and the lookups that are under way.

    One for all backends, since some share their caches.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self.memory = attestation.PromptMemory()
        self.running: Counter[str] = Counter()  # by tenant
        self.raw: set[str] = set()  # tenants of plain prompts, which may hold what chats render

    def seed(self, tenant: str) -> int:
        """What this tenant's digests begin with."""
        return prefixes.seed(self._secret, tenant)


class Recollection:
    """One prompt's lookup. ``begin`` when the request is sent.

    ``texts`` are looked up for the check of cached tokens, ``past``, of the backend, for the
    check of latency; either may be None.
    """

    def __init__(
        self,
        recollections: Recollections,
        request: ParsedRequest,
        tenant: str,
        *,
        texts: Texts | None,
        past: PrefixMemory | None,
        threads: Threads,
        spawn: Spawn,
    ) -> None:
        self._all = recollections
        self._request = request
        self._tenant = tenant
        self._texts = texts
        self._past = past
        self._threads = threads
        self._spawn = spawn
        self._begun = False
        self._blurred = False  # a longer prompt of the same tenant was not in the memory yet
        self._known = Known()
        self._task: asyncio.Task[Known] | None = None

    @property
    def attests(self) -> bool:
        """Whether texts are looked up."""
        return self._texts is not None

    @property
    def compares(self) -> bool:
        """Whether the share that is new is worked out; else it is 1."""
        return self._past is not None

    def begin(self) -> None:
        """Look it up, unless that was begun: most in place, so in the order of sending."""
        if self._begun:
            return
        self._begun = True
        self._blurred = self._all.running[self._tenant] > 0
        if quickly_rendered(self._request):  # hashing is quicker still
            self._known = self._concluded(*self._look_up())
        else:
            self._all.running[self._tenant] += 1
            self._task = self._spawn(self._on_thread(), "recollection")

    async def result(self) -> Known:
        """What is known of it."""
        self.begin()
        if self._task is not None:
            self._known = await self._task
        return self._known

    async def _on_thread(self) -> Known:
        try:
            return self._concluded(*await self._threads.on_thread(self._look_up))
        finally:
            self._all.running[self._tenant] -= 1

    def _look_up(self) -> tuple[Texts | None, list[bytes], int]:
        """What of the texts is new, known from now on; the whole prompt's digests and its size."""
        seed = self._all.seed(self._tenant)
        # By identity: the prompt has the same strings, and none is encoded twice.
        encoded = {id(text): prefixes.encoded(text) for text in self._texts or ()}
        unseen = None
        if self._texts is not None:
            parts = [encoded[id(text)] for text in self._texts]
            chains = [prefixes.chain([part], seed) for part in parts]
            unseen = attestation.unseen(parts, self._all.memory.take(chains))
        if self._past is None:
            return unseen, [], 0
        whole = [
            encoded.get(id(text)) or prefixes.encoded(text)
            for text in prompt_parts(self._request.body)
        ]
        return unseen, prefixes.chain(whole, seed), sum(map(len, whole))

    def _concluded(self, unseen: Texts | None, whole: list[bytes], size: int) -> Known:
        if self._blurred or self._tenant in self._all.raw:
            unseen = None
        if self._past is None:
            return Known(unseen)
        known = self._past.known_bytes(whole)
        self._past.remember(whole)
        return Known(unseen, max(0.0, 1 - known / max(1, size)))
