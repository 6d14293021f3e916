"""poolgate under test: a configuration made for each case, its start, memory, CPU and stalls."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil

from benchmarks.healthz_under_load import watched
from benchmarks.proxy.rig import Child, Cores, FakeEngine, Load, call, core_watch, free_port
from benchmarks.proxy.traffic import Body

KEY = "sk-growth-########"  # of the tenant with that number
START_SECONDS = 180.0
CONNECTIONS = 16
STAMPS_A_RUN = 10**9
RELOADED = b"configuration reloaded"
PAGES = ("/metrics", "/overview", "/status")  # of the admin plane that operators ask for


class WrongAnswers(Exception):
    """Not what was to be answered, or the engine saw another number of calls."""


def key_of(number: int) -> str:
    """The key of a tenant."""
    return KEY.replace("########", f"{number:08d}")


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds of each measurement."""

    warm_up: float
    loaded: float
    single: float
    idle: float


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration: everything on, none of the quotas within reach.

    ``longest`` is each tenant's ``max_prompt_tokens``; ``more`` is YAML at the top level.
    """

    engines: Sequence[str]
    longest: Sequence[int] = (100_000_000,)
    tokenizer: str = "qwen3"
    workers: int = 1
    store: str | None = None
    more: str = ""

    def text(self, port: int, admin: int) -> str:
        """As YAML."""
        lines = [f"listen: 127.0.0.1:{port}", f"admin: 127.0.0.1:{admin}", "backends:"]
        for number, url in enumerate(self.engines):
            lines += [
                f"  - name: engine-{number}",
                f"    url: {url}",
                f"    tokenizer: {self.tokenizer}",
                "    cache_salt: per_tenant",
            ]
        lines.append("tenants:")
        for number, longest in enumerate(self.longest):
            digest = sha256(key_of(number).encode()).hexdigest()
            lines += [
                f"  - id: tenant-{number:06d}",
                f'    key_sha256: ["{digest}"]',
                f"    policy: up-to-{longest}",
            ]
        lines.append("policies:")
        for longest in dict.fromkeys(self.longest):
            lines += [
                f"  up-to-{longest}:",
                "    requests_per_minute: 1000000000",
                "    tokens_per_minute: 1000000000000",
                "    tokens_per_day: 1000000000000000",
                "    concurrent: 1000",
                f"    max_prompt_tokens: {longest}",
            ]
        lines += ["integrity:", "  prompt_tokens: {sample: 1.0, action: flag}"]
        if self.workers > 1:
            lines.append(f"workers: {self.workers}")
        if self.store:
            # Eight workers on one core are slower to answer each other than any that have cores.
            lines += ["limits:", f"  store: {self.store}", "  timeout: 5s"]
        return "\n".join([*lines, self.more, ""])


@dataclass(slots=True)
class Rig:
    """What a part needs: cores, a folder, how long; and how many runs there were.

    ``lock`` is a file that whoever measures on this machine locks meanwhile.
    """

    cores: Cores
    work: Path
    plan: Plan
    lock: Path | None = None
    load: Load = field(init=False)
    runs: int = 0
    calls: int = 0

    def __post_init__(self) -> None:
        self.load = Load(self.cores.rig, self.work)

    @contextlib.contextmanager
    def engine(self, routes: dict[str, Any], addresses: int = 1) -> Iterator[FakeEngine]:
        """The fast fake engine."""
        engine = FakeEngine(self.cores.rig, self.work, addresses)
        try:
            engine.answer(routes)
            yield engine
        finally:
            engine.child.stop()

    @contextlib.contextmanager
    def gate(self, case: Case, core: int | str | None = None) -> Iterator[Gate]:
        """poolgate with that configuration, ready; on the core for the proxy unless told."""
        port, admin = free_port(), free_port()
        config = self.work / "growth.yaml"
        config.write_text(case.text(port, admin))
        argv = (sys.executable, "-m", "gateway", "serve", "--config", str(config))
        where = self.cores.proxy if core is None else core
        with self._quiet():
            began = time.monotonic()
            child = Child(argv, where, self.work / "growth.log")
            try:
                gate = Gate(self, child, port, admin)
                gate.until_ready(case.workers)
                gate.start_s = round(time.monotonic() - began, 2)
                yield gate
            finally:
                child.stop()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        if self.lock is None:
            yield
            return
        with self.lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield


@dataclass(slots=True)
class Gate:
    """poolgate, running."""

    rig: Rig
    child: Child
    port: int
    admin: int
    start_s: float = 0.0

    def until_ready(self, workers: int) -> None:
        """Wait until every limit is known to every worker. Raises ``TimeoutError``."""
        end = time.monotonic() + START_SECONDS
        while True:
            if not self.child.running:
                raise RuntimeError(self.child.log.read_text(errors="replace")[-2000:])
            status, text, _ = call(f"http://127.0.0.1:{self.admin}/readyz")
            if status == 200 and json.loads(text).get("processes_ready", 1) == workers:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"not ready: {status} {text[:300]!r}")
            time.sleep(0.02)

    def calibrated(self) -> float:
        """Wait until its counts were compared with every engine's; the seconds that took."""
        began = time.monotonic()
        while True:
            _, text, _ = call(f"http://127.0.0.1:{self.admin}/status")
            if all(one["calibration"]["age_s"] is not None for one in json.loads(text)["backends"]):
                return round(time.monotonic() - began, 1)
            if time.monotonic() - began > START_SECONDS:
                raise TimeoutError("not every engine was compared with")
            time.sleep(0.2)

    def run(
        self, engine: FakeEngine, body: Body, connections: int, seconds: float, **how: Any
    ) -> dict[str, Any]:
        """One run of the load generator, each answer checked. Raises ``WrongAnswers``."""
        rig = self.rig
        rig.runs += 1
        key = how.pop("key", key_of(0))
        before = engine.chats()
        got = rig.load.run(
            self.port, body, connections, seconds, rig.runs * STAMPS_A_RUN, key, **how
        )
        seen = engine.chats() - before
        if got["ok"] != got["calls"]:
            log = self.child.log.read_text(errors="replace")[-500:]
            raise WrongAnswers(f"not every answer was right: {got} {log}")
        if seen != (got["calls"] if how.get("status", 200) == 200 else 0):
            raise WrongAnswers(f"{got['calls']} calls, but the engine saw {seen}")
        rig.calls += got["calls"]
        return got

    def cost(
        self, engine: FakeEngine, body: Body, connections: int = CONNECTIONS, **how: Any
    ) -> dict[str, float]:
        """CPU microseconds a call and calls a second at load; latency of one call at a time."""
        plan = self.rig.plan
        self.run(engine, body, connections, plan.warm_up, **how)
        with core_watch(self.rig.cores.proxy, [self.child]) as shares:
            loaded = self.run(engine, body, connections, plan.loaded, **how)
        single = self.run(engine, body, 1, plan.single, **how)
        return {
            "cpu_us": round(shares["cpu"] * 1e6 / loaded["calls"], 1),
            "per_second": round(loaded["per_second"], 1),
            "p99_us": loaded["p99_us"],
            "single_p50_us": single["p50_us"],
            "foreign": round(shares["foreign"], 3),
        }

    def idle_share(self, seconds: float) -> float:
        """Share of a core it uses while nobody calls."""
        before = self.child.cpu_seconds()
        time.sleep(seconds)
        return (self.child.cpu_seconds() - before) / seconds

    def pin(self, core: int) -> None:
        """From now on all its threads have only that core."""
        for pid in self.processes_mib():
            subprocess.run(
                ["taskset", "--all-tasks", "--cpu-list", "--pid", str(core), str(pid)],
                check=True, capture_output=True,
            )  # fmt: skip

    def memory_mib(self) -> float:
        """Of all its processes, what two share counted once (PSS)."""
        return round(sum(self.processes_mib().values()), 1)

    def processes_mib(self) -> dict[int, float]:
        """The same by process, the first one first."""
        parent = psutil.Process(self.child.pid)
        return {
            one.pid: one.memory_full_info().pss / 2**20
            for one in (parent, *parent.children(recursive=True))
        }

    def asked(self, path: str) -> dict[str, float]:
        """A page of the admin plane: its bytes, milliseconds, and how long it stalls the loop."""
        url = f"http://127.0.0.1:{self.admin}{path}"
        times = []
        for _ in range(3):
            began = time.perf_counter()
            status, text, _ = call(url)
            times.append(time.perf_counter() - began)
            if status != 200:
                raise WrongAnswers(f"{path}: {status}")
        stall, _ = self.stall(lambda: [call(url) for _ in range(3)])
        return {
            "bytes": len(text),
            "ms": round(1000 * sorted(times)[1], 1),
            "stall_ms": stall,
        }

    def reload(self) -> dict[str, float]:
        """SIGHUP: seconds until the same configuration is in force, and the longest stall."""
        stall, seconds = self.stall(self._reloaded)
        return {"s": round(seconds, 2), "stall_ms": stall}

    def _reloaded(self) -> float:
        log = self.child.log
        before = log.read_bytes().count(RELOADED)
        began = time.monotonic()
        os.kill(self.child.pid, signal.SIGHUP)
        while log.read_bytes().count(RELOADED) == before:
            if time.monotonic() - began > START_SECONDS:
                raise TimeoutError("it did not reload")
            time.sleep(0.02)
        return time.monotonic() - began

    def stall(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """The longest /healthz took, of one every 20 ms while ``work`` ran; milliseconds."""
        latency, result = asyncio.run(watched(self.admin, work))
        return round(latency.longest, 1), result
