"""The line to the store: one command at a time, its whole answer, or the connection is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from secrets import token_bytes, token_hex
from typing import Any, Final

from gateway.core.sealing import NONCE_BYTES, Seal
from gateway.limits.remote.clients import Client, client_for
from gateway.settings.store import Store

ANSWER: Final = 1.0  # seconds; the client itself gives up after twice as long
_HARD_STOP: Final = 10.0  # seconds: longer than connecting, signing in and a command could take
_KEPT: Final = 7 * 86_400.0  # seconds: what nobody appends to ends
_PAGE: Final = 50  # entries of a stream in one answer
_FORMAT: Final = 1  # of what is written; another one is another group

_START: Final = b"-"


class StoreTrouble(Exception):
    """No answer. Its text holds nothing of the store's address or of what was sent."""


class Line:
    """Asks a store. To be used by one task; ``close`` it once that is over."""

    def __init__(self, store: Store, timeout: float = ANSWER) -> None:
        self._client: Client = client_for(store, timeout)

    async def ask(self, *command: str | bytes | int) -> Any:
        """The answer to a command. Raises ``StoreTrouble``.

        Where the answer was not read to its end, by trouble or because the task is cancelled,
        the connection is closed, so that nobody reads what is left of it.
        """
        whole = False
        try:
            async with asyncio.timeout(_HARD_STOP):
                answer = await self._client.execute_command(*command)
            whole = True
        except Exception as error:  # whatever it raises, the store gave no answer
            raise StoreTrouble(type(error).__name__) from None
        finally:
            if not whole:
                await self.close()
        return answer

    async def close(self) -> None:
        """Hang up. The next question connects anew."""
        with contextlib.suppress(Exception):  # it is given up either way
            await self._client.aclose()


@dataclass(frozen=True, slots=True)
class Group:
    """The gateways that hold one secret: they share a store's keys and can read each other.

    ``replica`` names this one, anew in each process.
    """

    secret: bytes
    replica: str

    def key(self, what: str) -> str:
        """A key of the store; all of a group's are in one slot of a cluster."""
        return f"poolgate:integrity:{_FORMAT}:{{{self.name}}}:{what}"

    @property
    def name(self) -> str:
        """What gateways with this secret call themselves in the store; says nothing of it."""
        return Seal(self.secret, "name").fingerprint

    def seal(self, what: str) -> Seal:
        """The seal of what is under ``key(what)``."""
        return Seal(self.secret, what)


class Stream:
    """A capped stream of sealed entries, which all replicas append to and read."""

    def __init__(
        self, line: Line, group: Group, what: str, most: int, *, kept: float = _KEPT
    ) -> None:
        self._line = line
        self._key = group.key(what)
        self._seal = group.seal(what)
        self._most = most
        self._kept_ms = round(kept * 1000)
        self._seen = b""  # the last entry's id
        self.more = False  # whether the last reading left some
        self.unreadable = 0  # entries not of this group, or changed

    async def append(self, data: bytes) -> None:
        """Append an entry; the oldest goes where there are too many. Raises ``StoreTrouble``."""
        sealed = self._seal.closed(data, token_bytes(NONCE_BYTES))
        await self._line.ask("XADD", self._key, "MAXLEN", "~", self._most, "*", "e", sealed)
        await self._line.ask("PEXPIRE", self._key, self._kept_ms)

    async def new(self, pages: int) -> AsyncIterator[bytes]:
        """What was appended since the last time, by whomever: so many pages of it at most.

        ``more`` says whether that was all. Raises ``StoreTrouble``.
        """
        for _ in range(pages):
            start = b"(" + self._seen if self._seen else _START
            page = await self._line.ask("XRANGE", self._key, start, "+", "COUNT", _PAGE)
            for name, fields in page:
                self._seen = name
                if (data := self._opened(fields)) is not None:
                    yield data
            self.more = len(page) == _PAGE
            if not self.more:
                return

    async def resume(self) -> None:
        """After trouble: begin anew where the store lost what was read, or its clock went back."""
        newest = await self._line.ask("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        if not newest or _order(newest[0][0]) < _order(self._seen):
            self._seen = b""

    def _opened(self, fields: Any) -> bytes | None:
        try:
            return self._seal.opened(fields[b"e"])
        except (KeyError, TypeError, ValueError):
            self.unreadable += 1
            return None


def _order(name: bytes) -> tuple[int, int]:
    milliseconds, _, number = name.partition(b"-")
    return int(milliseconds or 0), int(number or 0)


def new_replica() -> str:
    """A name for this process."""
    return token_hex(4)
