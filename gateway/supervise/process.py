"""One worker process as its supervisor sees it: its start, its private admin plane, its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex

import aiohttp
import msgspec
from yarl import URL

import gateway
from gateway.edge.tasks import Tasks
from gateway.settings import Problem
from gateway.supervise.handover import Handover, LastWords, Written

ANSWER = 2.0  # seconds for a worker to answer a question of operators
RELOAD = 120.0  # seconds for a worker to take a new configuration, tokenizers included
# Where a worker takes a configuration and tells its series, by PUT: no operator's request is one.
CONFIG, SERIES = "/config", "/series"
END_AT_ONCE = signal.SIGUSR1


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's answer to a question of its admin plane."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """What all workers are started with. ``data`` are bound sockets, ``folder`` is private."""

    data: Sequence[socket.socket]
    folder: Path
    environment: Mapping[str, str] = field(repr=False)


class Silent(Exception):
    """A worker that does not answer, or not in time."""


class Worker:
    """A running worker process. Made by ``spawn``."""

    def __init__(
        self,
        index: int,
        process: asyncio.subprocess.Process,
        lifeline: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        admin: Path,
        handed: Written,
        tasks: Tasks,
    ) -> None:
        self.index = index
        self.handed = handed
        self.up = False
        self.said = LastWords(b"", [])
        self._process = process
        self._reader, self._writer = lifeline
        self._admin = admin
        self._http = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(admin)))
        self._one_at_a_time = asyncio.Lock()
        self.started = asyncio.get_running_loop().time()
        self._over = tasks.spawn(self._until_over(), f"worker {index}")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def until_up(self) -> bool:
        """Wait until it serves; False where it ends before.

        The question waits in the socket's backlog until the worker listens, and fails when the
        worker is gone: nothing is polled.
        """
        try:
            await self.ask("GET", "/healthz", seconds=None)
        except Silent:
            await self.over()
            return False
        self.up = True
        return True

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, seconds: float | None = ANSWER
    ) -> Answer:
        """Ask its admin plane. Raises ``Silent``."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            url = URL("http://worker" + path, encoded=True)
            async with self._http.request(method, url, data=body, timeout=timeout) as answer:
                return Answer(answer.status, answer.content_type, await answer.read())
        # ValueError: an operator's path that is none. RuntimeError: the worker has ended.
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
            raise Silent(f"worker {self.index} does not answer: {type(error).__name__}") from error

    async def reload(self, written: Written) -> list[Problem]:
        """Hand it a configuration; what it has against it. Raises ``Silent``."""
        answer = await self.ask("PUT", CONFIG, msgspec.json.encode(written), seconds=RELOAD)
        if answer.status != HTTPStatus.OK:
            raise Silent(f"worker {self.index} failed to take the configuration")
        refused = msgspec.json.decode(answer.body, type=list[Problem])
        if not refused:
            self.handed = written
        return refused

    async def listen(self) -> bool:
        """Ask for its scrape and incidents, to remember them; whether it answered.

        One question at a time, so that what is remembered never goes back.
        """
        async with self._one_at_a_time:
            try:
                series = await self.ask("PUT", SERIES)
                incidents = await self.ask("GET", "/incidents")
            except Silent:
                return False
            self.said = LastWords(
                series.body, msgspec.json.decode(incidents.body, type=list[msgspec.Raw])
            )
            return True

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)

    async def over(self) -> int:
        """Wait for its end: its exit status, or the signal that killed it, negative."""
        return await asyncio.shield(self._over)

    async def _until_over(self) -> int:
        left = b""
        with contextlib.suppress(ConnectionError):  # killed before it had read everything
            left = await self._reader.read()  # to the end of the pair: the process is ending
        code = await self._process.wait()
        self._writer.close()
        await self._http.close()
        self._admin.unlink(missing_ok=True)
        with contextlib.suppress(msgspec.DecodeError):  # a killed one leaves none, or half
            self.said = msgspec.json.decode(left, type=LastWords)
        self.up = False
        return code


@dataclass(slots=True)
class Slot:
    """A worker's place: the process in it now, if any, and how often it was filled anew."""

    index: int
    worker: Worker | None = None
    restarts: int = 0


async def spawn(index: int, place: Place, handover: Handover, tasks: Tasks) -> Worker:
    """Start a worker process. Raises ``OSError`` where that cannot be done.

    It is a fresh interpreter: event loops, threads and tokenizers do not survive a fork. Its
    standard input is one end of a socket pair, over which it gets its configuration; when the
    other end closes, its supervisor is gone.
    """
    path = place.folder / f"{index}-{token_hex(4)}.sock"
    ours, theirs = socket.socketpair()
    with theirs, socket.socket(socket.AF_UNIX) as admin:
        admin.bind(str(path))
        admin.listen()
        inherited = [admin.fileno(), *(data.fileno() for data in place.data)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "gateway.supervise.worker",
            str(index),
            *map(str, inherited),
            stdin=theirs.fileno(),
            pass_fds=inherited,
            # A terminal's Ctrl-C goes to the supervisor alone, which then ends the workers.
            start_new_session=True,
            env={**place.environment, "PYTHONPATH": _import_path(place.environment)},
        )
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    with contextlib.suppress(ConnectionError):  # it ended at once; its exit status tells why
        writer.write(msgspec.json.encode(handover) + b"\n")
        await writer.drain()
    return Worker(index, process, (reader, writer), path, handover.written, tasks)


def _import_path(environment: Mapping[str, str]) -> str:
    """The parent's own package first, whatever the working directory holds."""
    own = str(Path(gateway.__file__).parents[1])
    inherited = environment.get("PYTHONPATH")
    return f"{own}:{inherited}" if inherited else own
