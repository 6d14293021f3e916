"""Fingerprints, exchanged: each replica's kept hashes go to a capped stream, sealed; the others
take them into their own memories, so that one tenant's text in another's answer is found whichever
replica saw it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.core.fingerprint import batch
from gateway.core.fingerprint.batch import Batch, Text
from gateway.core.fingerprint.index import Kind
from gateway.core.fingerprint.shingles import Hashes
from gateway.core.quarantine import BackendKey
from gateway.edge.backends import Backend
from gateway.edge.fingerprints import Fingerprints
from gateway.edge.metrics import Metrics
from gateway.edge.replicas.line import Group, Line, Stream

MOST_BATCHES: Final = 1024  # in the store: 64 MB
_KEPT: Final = 3600.0  # seconds, once nobody tells anything
_MOST_WAITING: Final = 2**20  # hashes that wait for the store: 8 MB, 2.7 million tokens
_MOST_REPLICAS: Final = 1000  # of which is known how much they told; each process is one
_AT_ONCE: Final = 16  # batches told in one round: standings come in between


class Outbox:
    """Hashes on their way out, and whose memories take what comes in. Outlives a reload."""

    def __init__(self, metrics: Metrics) -> None:
        self.check: Fingerprints | None = None
        self.backends: Sequence[Backend] = ()
        self.told = 0  # hashes, since the process began
        self._metrics = metrics
        self._waiting: deque[Text] = deque()
        self._size = 0

    def serve(self, check: Fingerprints | None, backends: Sequence[Backend]) -> None:
        """Share for this check from now on; None: share nothing."""
        if self.check is not None:
            self.check.tell = None
        self.check, self.backends = check, backends
        if check is not None:
            check.tell = self.put
        else:
            self._waiting.clear()
            self._size = 0

    def put(
        self, backend: BackendKey, tenant: str, kind: Kind, windows: Hashes, atoms: Hashes
    ) -> None:
        """Take a text's hashes; where too many wait, the oldest are dropped, and counted."""
        for text in batch.parts(backend, tenant, kind, windows, atoms):
            self._waiting.append(text)
            self._size += text.count
        while self._size > _MOST_WAITING:
            dropped = self._waiting.popleft().count
            self._size -= dropped
            self._metrics.shared.fingerprints.labels("dropped").inc(dropped)

    def take(self) -> list[Text]:
        """What goes into the next batch; empty where nothing waits."""
        texts: list[Text] = []
        room = batch.MOST_BYTES // 8
        while self._waiting and (not texts or self._waiting[0].count <= room):
            text = self._waiting.popleft()
            self._size -= text.count
            room -= text.count
            texts.append(text)
        return texts

    def __len__(self) -> int:
        return self._size


class SharedFingerprints:
    """This replica's side of the stream."""

    def __init__(self, line: Line, group: Group, outbox: Outbox, metrics: Metrics) -> None:
        self._stream = Stream(line, group, "fingerprints", MOST_BATCHES, kept=_KEPT)
        self._replica = group.replica
        self._outbox = outbox
        self._metrics = metrics
        self._heard: dict[str, int] = {}  # hashes each replica has told, up to what was read
        self._pending: tuple[bytes, int] | None = None  # a batch not in the store, and its hashes
        self._bad = 0

    @property
    def unreadable(self) -> int:
        """Entries that are not of this group, or were changed."""
        return self._stream.unreadable + self._bad

    async def exchange(self) -> bool:
        """Tell what waits, take in what others told; some of it. Raises ``StoreTrouble``.

        Whether there is more of it. A batch whose telling failed is told again.
        """
        if self._outbox.check is None:
            return False
        for _ in range(_AT_ONCE):
            if not await self._tell():
                break
        async for entry in self._stream.new(pages=1):
            await self._take_in(entry)
        return self._stream.more or len(self._outbox) > 0

    async def resume(self) -> None:
        """The store answers again. Raises ``StoreTrouble``."""
        await self._stream.resume()

    async def _tell(self) -> bool:
        if self._pending is None:
            texts = self._outbox.take()
            if not texts:
                return False
            count = sum(text.count for text in texts)
            self._pending = batch.written(self._replica, self._outbox.told, texts), count
            self._outbox.told += count
        data, count = self._pending
        await self._stream.append(data)
        self._pending = None
        self._metrics.shared.fingerprints.labels("told").inc(count)
        return True

    async def _take_in(self, entry: bytes) -> None:
        try:
            told = batch.read(entry)
        except ValueError:
            self._bad += 1
            return
        check = self._outbox.check
        if told.replica == self._replica or check is None:
            return
        self._note(told)
        for text in told.texts:
            backend = next((one for one in self._outbox.backends if _is(one, text)), None)
            if backend is None:
                continue
            for _ in _remembering(check, backend, text):
                await asyncio.sleep(0)
            self._metrics.shared.fingerprints.labels("heard").inc(text.count)

    def _note(self, told: Batch) -> None:
        """Count what of a replica's was gone from the store before it was read."""
        known = self._heard.pop(told.replica, told.before)
        if told.before > known:
            self._metrics.shared.fingerprints.labels("missed").inc(told.before - known)
        count = sum(text.count for text in told.texts)
        self._heard[told.replica] = max(known, told.before + count)
        while len(self._heard) > _MOST_REPLICAS:
            del self._heard[next(iter(self._heard))]


def _is(backend: Backend, text: Text) -> bool:
    return (backend.name, backend.wiring.url) == (text.backend, text.url)


def _remembering(check: Fingerprints, backend: Backend, text: Text) -> Iterator[None]:
    """Takes a text into the backend's memory, in steps of under a millisecond."""
    memory, tenant = check.memory(backend), check.memories.number_of(text.tenant)
    for index, data in ((memory.index, text.windows), (memory.atoms, text.atoms)):
        if data:
            yield from index.add(tenant, Kind(text.kind), batch.hashes(data))
