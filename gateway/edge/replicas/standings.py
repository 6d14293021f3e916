"""Standings, exchanged: one document in the store, replaced only by who has read what is there.

What each replica knows is merged into it; who is taken out is decided on the document as it was
when it was replaced, so that replicas together keep ``max_share``.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha1
from secrets import token_bytes
from typing import Final

from gateway.core import casefile
from gateway.core.quarantine import NOTHING, BackendKey, Case
from gateway.core.sealing import NONCE_BYTES
from gateway.edge.replicas.line import Group, Line, StoreTrouble
from gateway.edge.standing import Standings

_ATTEMPTS: Final = 20  # in one round, each lost to another replica
_KEPT_MS: Final = 30 * 86_400_000  # once no replica asks any more

# Keys: the document. Arguments: SHA-1 of what the caller knows of it, what is to be there instead
# (nothing: leave it), how long it is kept. Answers 1, or what the caller does not know.
_EXCHANGE: Final = """
local there = redis.call('GET', KEYS[1]) or ''
if redis.sha1hex(there) ~= ARGV[1] then return there end
if ARGV[2] ~= '' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return 1
"""


class SharedStandings:
    """This replica's side of the document."""

    def __init__(self, line: Line, group: Group, standings: Standings) -> None:
        self._line = line
        self._key = group.key("standings")
        self._seal = group.seal("standings")
        self._standings = standings
        self._sealed = b""  # the document as it was last seen
        self._shared: Mapping[BackendKey, Case] = {}
        self._settled: Mapping[BackendKey, Case] | None = (
            None  # what was known here when it was agreed
        )
        self.unreadable = 0  # documents not of this group, or changed; replaced by what is known

    async def exchange(self) -> bool:
        """Hear what others know, and tell them what is known here. Raises ``StoreTrouble``.

        Whether others were faster every time, so that the next round must tell them.
        """
        for _ in range(_ATTEMPTS):
            known = self._standings.cases()
            agreed, told = self._shared, b""
            if known != self._settled:
                agreed = self._standings.agreed(self._shared)
                if agreed != self._shared:
                    told = self._seal.closed(casefile.written(agreed), token_bytes(NONCE_BYTES))
            answer = await self._ask(told)
            if answer is None:
                self._sealed, self._shared = told or self._sealed, agreed
                if known != self._settled:
                    self._standings.adopt(agreed)
                    self._settled = {key: agreed.get(key, NOTHING) for key in known}
                return False
            self._hear(answer)
        return True

    async def _ask(self, told: bytes) -> bytes | None:
        """None where it was done; else the document, which is another than the one known."""
        digest = sha1(self._sealed, usedforsecurity=False).hexdigest()
        answer = await self._line.ask("EVAL", _EXCHANGE, 1, self._key, digest, told, _KEPT_MS)
        if answer != 1 and not isinstance(answer, bytes):
            raise StoreTrouble("an answer that is none")
        return answer if isinstance(answer, bytes) else None

    async def resume(self) -> None:
        """Nothing: what the store lost shows by itself."""

    def _hear(self, sealed: bytes) -> None:
        self._sealed, self._settled = sealed, None
        try:
            self._shared = casefile.read(self._seal.opened(sealed)) if sealed else {}
        except ValueError:
            self._shared = {}
            self.unreadable += 1
