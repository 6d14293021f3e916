"""What of a prompt could be in the prefix cache: keyed chain hashes of a tenant's prompts.

Each prompt leaves one hash for every ``STEP`` bytes of its text, each hash covering all the text
before it, so the longest known chain is the longest common prefix with any earlier prompt of that
tenant, to the step. Keys make the hashes useless outside this process (no text is kept).
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

STEP = 1024  # bytes of prompt text, about 256 tokens


def chain(text: bytes, key: bytes) -> tuple[bytes, ...]:
    """The chain hashes of a prompt, one a full step: 16 bytes each, about 1 GB/s."""
    digest = blake2b(key=key, digest_size=16)
    hashes = []
    for start in range(0, len(text) - STEP + 1, STEP):
        digest.update(text[start : start + STEP])
        hashes.append(digest.copy().digest())
    return tuple(hashes)


class PrefixMemory:
    """Chain hashes lately seen on one backend, least recently used out first.

    ``capacity`` is in steps; one costs about 150 bytes. The tenant belongs into the key of the
    hashes, so tenants do not see each other's prefixes here.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def known_bytes(self, hashes: tuple[bytes, ...]) -> int:
        """An upper bound on the bytes of this prompt's start that an earlier one shares."""
        steps = 0
        for digest in hashes:
            if digest not in self._known:
                break
            steps += 1
        return (steps + 1) * STEP

    def remember(self, hashes: tuple[bytes, ...]) -> None:
        """Add a prompt that was sent to the backend."""
        for digest in hashes:
            self._known[digest] = None
            self._known.move_to_end(digest)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
