"""Processes on their cores: the fake engine, the load generator, the proxy under test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.proxy.traffic import CHAT_PATH, MARKER, STAMP, Body

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / ".bench"
NATIVE = BENCH / "bin"
PREFIX = ("setpriv", "--pdeathsig", "KILL", "taskset", "-c")
NO_PROXY = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cores:
    """One core for the proxy under test, the other for all the rest."""

    rig: int
    proxy: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        """The first two cores this process may use; raises when there is only one."""
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            raise RuntimeError("two cores are needed: one for the proxy, one for the load")
        return cls(allowed[0], allowed[1])


class Child:
    """A process group pinned to one core, which ends with this process whatever happens."""

    def __init__(
        self, argv: Sequence[str], core: int | str, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        words = [f"{name}={value}" for name, value in {**NO_PROXY, **(env or {})}.items()]
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [*PREFIX, str(core), "env", *words, *argv],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.log = log
        favour(self.pid, os.getpriority(os.PRIO_PROCESS, 0))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """Processor time of the group so far, user and system."""
        total = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.pid)
            for process in (parent, *parent.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total += times.user + times.system
        return total

    def pause(self) -> None:
        """Stops it dead, so that idle peers take no time from the one under test."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(3)
        self._signal(signal.SIGKILL)
        self._process.wait(5)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def favour(pid: int, nice: int) -> None:
    """Gives a session's scheduling group its nice value: the kernel groups processes by session.

    Without groups (``autogroup`` off) the nice value of each process is enough.
    """
    group = Path(f"/proc/{pid}/autogroup")
    if nice and group.exists():
        group.write_text(str(nice))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def call(
    url: str, data: bytes | None = None, method: str | None = None, key: str | None = None
) -> tuple[int, bytes, Mapping[str, str]]:
    """One plain HTTP exchange; status 0 when nobody answered."""
    headers = {"content-type": "application/json"} | (
        {"authorization": f"Bearer {key}"} if key else {}
    )
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=30) as answer:
            return answer.status, answer.read(), dict(answer.headers.items())
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read(), dict(refused.headers.items())
    except (OSError, urllib.error.URLError) as failure:
        return 0, str(failure).encode(), {}


class FakeEngine:
    """The fast upstream, told over HTTP what to answer.

    It listens on as many ``addresses`` from 127.0.0.1 on: one process, and many engines to a proxy.
    """

    def __init__(self, core: int, work: Path, addresses: int = 1) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.urls = [f"http://127.0.0.{1 + i}:{self.port}" for i in range(addresses)]
        argv = [str(NATIVE / "upstream"), str(self.port), str(addresses)]
        self.child = Child(argv, core, work / "upstream.log")
        wait_for(lambda: call(f"{self.url}/bench/hits")[0] == 200, 5, "the fake engine")

    def set(self, path: str, answer: Any) -> None:
        status, text, _ = call(self.url + path, json.dumps(answer).encode(), "PUT")
        if status != 200:
            raise RuntimeError(f"the fake engine did not take {path}: {status} {text[:200]!r}")

    def answer(self, routes: Mapping[str, Any]) -> None:
        """Have each path answered by its JSON."""
        for path, answer in routes.items():
            self.set(path, answer)

    def chats(self) -> int:
        """How many chat requests it has answered."""
        hits = json.loads(call(f"{self.url}/bench/hits")[1])
        return int(hits.get(CHAT_PATH, 0))


def wait_for(ready: Any, seconds: float, what: str) -> None:
    """Polls until ``ready()``; raises TimeoutError after ``seconds``."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} was not ready in {seconds:.0f} s")
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Load:
    """Runs the load generator on its core. No request of a run is like another (``stamp``)."""

    core: int
    work: Path

    def run(
        self,
        port: int,
        body: Body,
        connections: int,
        seconds: float,
        stamp: int,
        key: str | None,
        *,
        keys: int = 0,
        status: int = 200,
        marker: str = MARKER,
    ) -> dict[str, Any]:
        """One closed-loop run: the generator's report. Raises when it could not run.

        With ``keys`` the ``########`` in ``key`` counts from 0 to one less, over and over. Right
        answers have that ``status``, and ``marker`` in them.
        """
        path = self.work / f"{body.name}.json"
        if not path.exists():
            path.write_bytes(body.data)
        headers = [f"authorization: Bearer {key}"] if key else []
        argv = [
            str(NATIVE / "load"), "-s", str(status), "-k", str(keys),
            str(port), CHAT_PATH, str(connections), str(seconds), str(path),
            str(body.stamp_offset), str(len(STAMP)), str(stamp), marker, *headers,
        ]  # fmt: skip
        done = subprocess.run(
            ["taskset", "-c", str(self.core), *argv],
            capture_output=True, text=True, timeout=seconds + 90, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"load generator: {done.stderr.strip()}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report


@contextlib.contextmanager
def core_watch(core: int, ours: Sequence[Child]) -> Iterator[dict[str, float]]:
    """Shares of one core while the block runs: ``busy`` by our children, ``foreign`` by others.

    ``cpu`` is our children's processor time in seconds.
    """
    shares: dict[str, float] = {}
    mine, all_busy, began = _cpu(ours), _core_busy(core), time.monotonic()
    yield shares
    elapsed = time.monotonic() - began
    shares["cpu"] = _cpu(ours) - mine
    shares["busy"] = shares["cpu"] / elapsed
    shares["foreign"] = max(0.0, (_core_busy(core) - all_busy) / elapsed - shares["busy"])


def _cpu(children: Sequence[Child]) -> float:
    return sum(child.cpu_seconds() for child in children)


def _core_busy(core: int) -> float:
    """Seconds this core has been at work (steal by the host included) since boot."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, numbers[:8])
            return (user + nice + system + irq + softirq + steal) / TICKS
    raise RuntimeError(f"no core {core} in /proc/stat")
