"""Other tenants' text in answers: what is remembered for each backend, and the check's settings.

Texts are hashed on a thread where they are long; memory is written and read on the event loop
alone, in steps of a millisecond at most (``gateway.edge.watch``).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from gateway.core.capacity import Snapshot
from gateway.core.fingerprint.index import Index, Kind
from gateway.core.fingerprint.shingles import Hashes, KnownText, Scheme, entries_for
from gateway.core.fingerprint.sprt import Suspicion
from gateway.core.quarantine import BackendKey
from gateway.core.tenants import Tenant
from gateway.edge.backends import Backend
from gateway.edge.counting import Threads
from gateway.edge.metrics import Metrics
from gateway.edge.tasks import Tasks
from gateway.edge.watch import Watch
from gateway.settings import Problem, Settings, SettingsError
from gateway.types import Action, ParsedRequest

T = TypeVar("T")
# Takes the backend's name and URL, the tenant's tag, and hashes of windows and of atoms.
Tell = Callable[[BackendKey, str, Kind, Hashes, Hashes], None]

UNKNOWN_POOL: Final = 262_144  # tokens, where an engine does not tell its pool
MOST_TOKENS: Final = 2**25  # remembered for one backend: 160 MB
ATOM_SHARE: Final = 16  # room for one atom to so many hashes of windows


@dataclass(frozen=True, slots=True)
class FingerprintPolicy:
    """What the operator wants: ``learning`` is seconds during which findings are only flagged."""

    pool_multiple: float
    action: Action
    learning: float


class Memory:
    """What one backend's tenants lately sent, and how suspicious its answers were."""

    def __init__(self, tokens: int, began: float) -> None:
        self.tokens = tokens
        self.began = began
        self.index = Index(entries_for(tokens))
        self.atoms = Index(max(1, entries_for(tokens) // ATOM_SHARE))
        self.suspicion = Suspicion()


class Memories:
    """All backends' memories, under one key. They outlive a reload."""

    def __init__(self, secret: bytes, clock: Callable[[], float]) -> None:
        self.secret = secret
        self.scheme = Scheme(hmac.digest(secret, b"fingerprints: windows", "sha256"))
        self.atom_key = hmac.digest(secret, b"fingerprints: atoms", "sha256")
        self._clock = clock
        self._tenants: dict[str, int] = {}
        self._names: dict[str, str] = {}  # of tenants, by their tags
        self._by_backend: dict[str, Memory] = {}

    def number(self, tenant: str) -> int:
        """The tenant's number in the memories."""
        return self._tenants.setdefault(tenant, len(self._tenants))

    def tag(self, tenant: str) -> str:
        """A tenant's keyed hash, alike wherever the key is."""
        return hmac.new(self.secret, b"fingerprints: " + tenant.encode(), "sha256").hexdigest()[:16]

    def know(self, tenants: Iterable[str]) -> None:
        """Names whose tags other gateways may tell."""
        self._names.update({self.tag(tenant): tenant for tenant in tenants})

    def number_of(self, tag: str) -> int:
        """The number of a tenant told by its tag; a tenant of its own where the name is unknown."""
        return self.number(self._names.get(tag, tag))

    def tenant(self, number: int) -> str:
        """The tenant of a number. Raises ``LookupError`` where there is none."""
        return tuple(self._tenants)[number]

    def of(self, backend: str, tokens: int) -> Memory:
        """A backend's memory; a new one where its pool has grown, for an engine that restarted."""
        memory = self._by_backend.get(backend)
        if memory is None or memory.tokens < tokens:
            began = self._clock() if memory is None else memory.began
            memory = self._by_backend[backend] = Memory(tokens, began)
        return memory


def remembered_tokens(snapshot: Snapshot, multiple: float) -> int:
    """How much text may still lie in the memory of all workers, GPU pools and what is behind."""
    pools = [
        facts.pool_tokens
        for seen in snapshot.workers.values()
        for facts in seen.facts
        if facts.pool_tokens is not None
    ]
    return min(MOST_TOKENS, int((sum(pools) or UNKNOWN_POOL) * multiple))


class Fingerprints:
    """Makes the watch on each answer. ``public`` is text that is nobody's."""

    def __init__(
        self,
        policy: FingerprintPolicy,
        memories: Memories,
        public: KnownText | None,
        threads: Threads,
        tasks: Tasks,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.policy = policy
        self.memories = memories
        self.public = public
        self.threads = threads
        self.tasks = tasks
        self.metrics = metrics
        self.clock = clock
        self.tell: Tell | None = None  # takes what other gateways are to know; None: nothing

    def memory(self, backend: Backend) -> Memory:
        """What is remembered for a backend, by what its engine's memory holds now."""
        tokens = remembered_tokens(backend.discovery.snapshot, self.policy.pool_multiple)
        return self.memories.of(backend.name, tokens)

    def watch(self, backend: Backend, request: ParsedRequest, tenant: Tenant) -> Watch | None:
        """The watch on one answer; None where nothing is generated."""
        if not request.generates:
            return None
        key = backend.name, backend.wiring.url
        return Watch(self, self.memory(backend), key, request, tenant)

    async def worked_out(self, size: int, work: Callable[[], T]) -> T:
        """The result of ``work`` on ``size`` characters: here if they are few, else on a thread."""
        if size <= self.threads.inline_bytes:
            return work()
        return await self.threads.on_thread(work)


async def fingerprinting(
    settings: Settings,
    secret: bytes,
    before: Fingerprints | None,
    threads: Threads,
    tasks: Tasks,
    metrics: Metrics,
    clock: Callable[[], float],
) -> Fingerprints | None:
    """The check as configured, with what the one ``before`` it remembered, under the same key.

    ``secret`` is that of all gateways that share it.

    Raises ``SettingsError`` for a public text that cannot be read.
    """
    check = settings.integrity.fingerprints
    if check is None:
        return None
    kept = before.memories if before is not None and before.memories.secret == secret else None
    memories = kept or Memories(secret, clock)
    if check.shared:
        await asyncio.to_thread(memories.know, [tenant.id for tenant in settings.tenants])
    public = await asyncio.to_thread(_public_text, check.public_text, memories.scheme)
    policy = FingerprintPolicy(check.pool_multiple, Action(check.action), check.learning)
    return Fingerprints(policy, memories, public, threads, tasks, metrics, clock)


def _public_text(paths: tuple[str, ...], scheme: Scheme) -> KnownText | None:
    texts, problems = [], []
    for place, path in enumerate(paths):
        try:
            texts.append(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            where = f"integrity.fingerprints.public_text[{place}]"
            problems.append(Problem(where, f"cannot be read: {type(error).__name__}"))
    if problems:
        raise SettingsError(problems)
    return KnownText(scheme, texts) if texts else None
