"""One prober for several processes: one asks the engines, the others hear what they said.

The processes share a private folder. Who holds the lock in it leads: it asks, and serves what it
learns on a socket there. The kernel gives the lock up with the process, so the next one leads as
soon as the first is dead, and nobody has to tell that it is. A leader that hangs keeps the lock:
then what is heard grows old, and each process asks for itself (``Discovery``), long before a limit
is stale. Nothing is taken for fresher than it is: words carry the time they were given, on the
monotonic clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.core.capacity import Snapshot
from gateway.edge.tasks import Tasks

log = logging.getLogger(__name__)
RETRY = 0.05  # seconds until a process that found nobody to follow tries to lead again
SETTLE = 2.0  # seconds a start waits to hear what is known already
LONGEST = 2**24  # bytes of a message: hundreds of workers behind a router
BEHIND = 2**20  # bytes that a process may leave unread before it is hung up on


class Word(msgspec.Struct, frozen=True):
    """What one round over a backend gave. ``at``: when it was over; names of adapters."""

    snapshot: Snapshot
    engine: str | None
    router: str | None
    at: float


class Told(msgspec.Struct, frozen=True, tag=True):
    """From the leader: the word on a backend."""

    backend: str
    word: Word


class AllTold(msgspec.Struct, frozen=True, tag=True):
    """From the leader: what it knew when the other came has been told."""


class AskSoon(msgspec.Struct, frozen=True, tag=True):
    """To the leader: a backend may have changed."""

    backend: str


class Learned(msgspec.Struct, frozen=True, tag=True):
    """To the leader: a backend refused a prompt naming this limit, in tokens."""

    backend: str
    limit: int


_down = msgspec.json.Decoder(Told | AllTold)
_up = msgspec.json.Decoder(AskSoon | Learned)


class Asker(Protocol):
    """A backend's discovery (``gateway.edge.discovery``). ``key``: what it asks, and how."""

    key: str

    def word(self) -> Word | None:
        """What its last round gave; None before the first."""

    def take(self, word: Word) -> None:
        """Another process has asked."""

    def learned_limit(self, stated: int) -> None:
        """The engine refused a prompt naming this limit."""

    def ask_soon(self) -> None:
        """Do not wait for the next refresh."""


class OneProber:
    """This process among those that share ``folder``. ``start`` once, ``stop`` once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "prober"
        self._askers: defaultdict[str, list[Asker]] = defaultdict(list)
        self._heard: dict[str, Word] = {}
        self._followers: set[asyncio.StreamWriter] = set()
        self._leader: asyncio.StreamWriter | None = None
        self._lock: int | None = None
        self._server: asyncio.Server | None = None
        self._settled = asyncio.Event()
        self._tasks = Tasks()
        self.leads = False

    async def start(self) -> None:
        """Lead, or hear from the leader what is known; or neither, after ``SETTLE`` seconds."""
        self._tasks.spawn(self._run(), "one prober")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE):
                await self._settled.wait()

    async def stop(self) -> None:
        """Let another lead."""
        self.leads = False
        await self._tasks.cancel()
        if self._server is not None:
            self._server.close()
        for writer in (*self._followers, *([self._leader] if self._leader else [])):
            writer.transport.abort()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def join(self, asker: Asker) -> None:
        """From now on it is told what others hear. What has been heard already, at once."""
        self._askers[asker.key].append(asker)
        if not self.leads and (word := self._heard.get(asker.key)) is not None:
            asker.take(word)

    def leave(self, asker: Asker) -> None:
        """It asks no more, and need not hear."""
        self._askers[asker.key].remove(asker)
        if not self._askers[asker.key]:
            del self._askers[asker.key]
            self._heard.pop(asker.key, None)

    def tell(self, asker: Asker) -> None:
        """It has a new word. Told to all by the leader; of another process it stays there."""
        if self.leads and (word := asker.word()) is not None:
            for writer in list(self._followers):
                self._send(writer, Told(asker.key, word))

    def ask_soon(self, asker: Asker) -> None:
        """Have the leader ask."""
        self._send_up(AskSoon(asker.key))

    def learned(self, asker: Asker, limit: int) -> None:
        """Have everyone hold to a limit that an engine has stated to this process."""
        if self.leads:
            self.tell(asker)
        else:
            self._send_up(Learned(asker.key, limit))

    async def _run(self) -> None:
        while not self._takes_the_lock():
            await self._follow()
            await asyncio.sleep(RETRY)
        self._socket.unlink(missing_ok=True)  # of a leader that was killed
        self._server = await asyncio.start_unix_server(
            self._serve, str(self._socket), limit=LONGEST
        )
        self.leads = True
        self._settled.set()
        log.info("this process asks the engines for all")
        for asker in self._every_asker():
            asker.ask_soon()

    def _takes_the_lock(self) -> bool:
        descriptor = os.open(self._folder / "prober.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    async def _follow(self) -> None:
        """Hear the leader until it is gone."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=LONGEST)
        except OSError:  # it does not listen yet, or is gone
            return
        self._leader = writer
        try:
            while line := await reader.readline():
                self._take(_down.decode(line))
        except (ConnectionError, ValueError):  # half a message of one that was killed
            pass
        finally:
            self._leader = None
            writer.transport.abort()

    def _take(self, message: Told | AllTold) -> None:
        if isinstance(message, AllTold):
            self._settled.set()
            return
        askers = self._askers.get(message.backend, ())
        if askers or not self._settled.is_set():
            self._heard[message.backend] = message.word
        for asker in askers:
            asker.take(message.word)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One other process, until it ends."""
        for asker in self._every_asker():
            if (word := asker.word()) is not None:
                self._send(writer, Told(asker.key, word))
        self._send(writer, AllTold())
        self._followers.add(writer)
        try:
            while line := await reader.readline():
                self._hear(_up.decode(line))
        except (ConnectionError, ValueError):
            pass
        finally:
            self._followers.discard(writer)
            writer.transport.abort()

    def _hear(self, message: AskSoon | Learned) -> None:
        for asker in list(self._askers.get(message.backend, ())):
            if isinstance(message, Learned):
                asker.learned_limit(message.limit)
            else:
                asker.ask_soon()

    def _every_asker(self) -> Iterable[Asker]:
        return [asker for askers in self._askers.values() for asker in askers]

    def _send_up(self, message: AskSoon | Learned) -> None:
        if self._leader is not None:
            self._send(self._leader, message)

    def _send(self, writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
        """Without waiting: who does not read is hung up on, and hears all anew when it is back."""
        if writer.transport.get_write_buffer_size() > BEHIND:
            writer.transport.abort()
            return
        writer.write(msgspec.json.encode(message) + b"\n")
