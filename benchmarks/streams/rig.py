"""Streams through one proxy: opened, measured or held, and the proxy's share of its core."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.proxy import peers
from benchmarks.proxy.rig import NATIVE, Child, Cores, FakeEngine, call, core_watch
from benchmarks.proxy.traffic import CHAT_PATH
from benchmarks.streams import script

RAMP = 400.0  # streams opened a second
WARM = 1.0  # seconds from the last stream's first event to what is measured
SETTLE, MOST_WAITS = 1.5, 6  # memory is read every so many seconds, so often,
ALIKE = 2**18  # until two readings differ by no more bytes


class Failed(Exception):
    """Streams broke, or did not end as they should."""


class Overloaded(Exception):
    """Streams did not all begin in time."""


@dataclass(frozen=True, slots=True)
class Rig:
    """The engine, the clients, and where both run."""

    cores: Cores
    engine: FakeEngine
    work: Path

    def measure(
        self, one: peers.Running, streams: int, seconds: float, together: int
    ) -> dict[str, Any]:
        """What the clients report, and the proxy's ``busy``, ``foreign``, ``cpu`` and ``user``.

        ``user`` are seconds outside the kernel, whose part depends on how idle the machine is.
        """
        self._set(script.stream(together=together))
        ours = [one.child] if one.child else []
        with self._clients(one, streams, WARM, seconds) as clients:
            _begun(clients)
            with core_watch(self.cores.proxy, ours) as shares:
                user = sum(map(_user_seconds, ours))
                got = json.loads(_line(clients))
                user = sum(map(_user_seconds, ours)) - user
            self.quiet()
            ends = json.loads(_line(clients))
        if ends["bad"] or ends["early"]:
            raise Failed(f"{ends}")
        return {**got, **shares, "user": user, **ends}

    def held(self, one: peers.Running, streams: int) -> int:
        """Memory of the proxy, in bytes, while so many streams have had two events and no more."""
        assert one.child is not None
        self._set(script.stream(interval_us=0))
        if not streams:
            return _settled(one.child.pid)
        with self._clients(one, streams, 0, 0) as clients:
            _begun(clients)
            return _settled(one.child.pid)

    def quiet(self) -> None:
        """The engine ends its streams, and answers whole again."""
        self._set("")

    def _set(self, text: str) -> None:
        status, _, _ = call(f"{self.engine.url}/bench/stream", text.encode(), "PUT")
        if status != 200:
            raise RuntimeError(f"the fake engine did not take the stream: {status}")

    @contextmanager
    def _clients(
        self, one: peers.Running, streams: int, warm: float, seconds: float
    ) -> Iterator[subprocess.Popen[str]]:
        body = self.work / "stream.json"
        body.write_bytes(script.request())
        headers = [f"authorization: Bearer {one.peer.key}"] if one.peer.key else []
        numbers = (one.port, CHAT_PATH, streams, RAMP, warm, seconds, script.INTERVAL_US)
        argv = [str(NATIVE / "streams"), *map(str, numbers), str(body), script.MARKER, *headers]
        with subprocess.Popen(
            ["taskset", "-c", str(self.cores.rig), *argv],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as clients:  # fmt: skip
            try:
                yield clients
            finally:
                clients.kill()


def _line(clients: subprocess.Popen[str]) -> str:
    assert clients.stdout is not None
    assert clients.stderr is not None
    line = clients.stdout.readline()
    if not line:
        raise Failed(clients.stderr.read().strip())
    return line


def _begun(clients: subprocess.Popen[str]) -> None:
    try:
        _line(clients)
    except Failed as failure:
        raise Overloaded(str(failure)) from None


def _user_seconds(child: Child) -> float:
    parent = psutil.Process(child.pid)
    return float(sum(each.cpu_times().user for each in (parent, *parent.children(recursive=True))))


def _settled(pid: int) -> int:
    """Resident bytes of a process and its children, once they change no more."""
    seen = 0
    for _ in range(MOST_WAITS):
        time.sleep(SETTLE)
        before, seen = seen, _resident(pid)
        if abs(seen - before) < ALIKE:
            break
    return seen


def _resident(pid: int) -> int:
    parent = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (parent, *parent.children(recursive=True)))
