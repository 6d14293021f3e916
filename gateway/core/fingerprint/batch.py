"""Kept hashes of several texts as bytes, for other gateways with the same key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np

from gateway.core.fingerprint.index import Kind
from gateway.core.fingerprint.shingles import Hashes

MOST_BYTES: Final = 2**16  # of hashes in one batch
_BYTES: Final = 8  # a hash
_MOST_HASHES: Final = MOST_BYTES // _BYTES


class Text(msgspec.Struct, array_like=True, frozen=True):
    """A text's hashes, or a part of them. ``tenant`` is a keyed hash; the backend is by name and
    URL. ``windows`` and ``atoms`` are little-endian, 8 bytes each.
    """

    backend: str
    url: str
    tenant: str
    kind: int
    windows: bytes
    atoms: bytes

    @property
    def count(self) -> int:
        """How many hashes it holds."""
        return (len(self.windows) + len(self.atoms)) // _BYTES


class Batch(msgspec.Struct, array_like=True):
    """What ``replica`` tells at once; ``before`` is how many hashes it told before that."""

    replica: str
    before: int
    texts: list[Text]


def parts(
    backend: tuple[str, str], tenant: str, kind: Kind, windows: Hashes, atoms: Hashes
) -> Iterator[Text]:
    """A text's hashes in parts that each fit into a batch."""
    for start in range(0, len(windows), _MOST_HASHES):
        some = windows[start : start + _MOST_HASHES]
        yield Text(*backend, tenant, kind, _bytes(some), b"")
    for start in range(0, len(atoms), _MOST_HASHES):
        yield Text(*backend, tenant, kind, b"", _bytes(atoms[start : start + _MOST_HASHES]))


def written(replica: str, before: int, texts: Iterable[Text]) -> bytes:
    """A batch as bytes."""
    return msgspec.msgpack.encode(Batch(replica, before, list(texts)))


def read(data: bytes) -> Batch:
    """The batch in ``data``. Raises ``ValueError`` where it is none."""
    batch = msgspec.msgpack.decode(data, type=Batch)
    for text in batch.texts:
        if len(text.windows) % _BYTES or len(text.atoms) % _BYTES or text.kind not in set(Kind):
            raise ValueError("not a batch of hashes")
    return batch


def hashes(data: bytes) -> Hashes:
    """What ``Text.windows`` and ``Text.atoms`` hold."""
    return np.frombuffer(data, "<u8").astype(np.uint64)


def _bytes(some: Hashes) -> bytes:
    return some.astype("<u8").tobytes()
