"""What the processes hold: memory at any time; files, tasks, places, series when all is quiet."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.soak.rig import LEASE, Instance

SUPERVISOR = "supervisor"
IMMORTAL = "worker 0"
SETTLED = 2.0  # seconds for what has been hung up to be noticed
PATIENCE = LEASE + 40.0  # seconds until all must be quiet
EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A process's resident memory in bytes, at monotonic seconds."""

    at: float
    process: str
    pid: int
    rss: int


@dataclass(frozen=True)
class Quiet:
    """What was held after a round, once nobody called any more.

    By process: ``files``, open descriptors but for connections kept ``to_store`` and ``to_engine``,
    and ``tasks``, asyncio's. ``labels``: every value of every label. ``waited``: seconds until
    nothing ran.
    """

    round: int
    waited: float
    in_flight: int
    places: int
    files: Mapping[str, int]
    to_store: Mapping[str, int]
    to_engine: Mapping[str, int]
    tasks: Mapping[str, int]
    series: int
    labels: Mapping[str, frozenset[str]]
    metrics: str


async def sample(gateway: Instance, into: list[Sample]) -> None:
    """Memory, for ever."""
    while True:
        for name, process in processes(gateway).items():
            with contextlib.suppress(psutil.NoSuchProcess):
                rss = process.memory_info().rss
                into.append(Sample(monotonic(), name, process.pid, rss))
        await asyncio.sleep(EVERY)


def processes(gateway: Instance) -> dict[str, psutil.Process]:
    """The supervisor and its workers by name."""
    found = {SUPERVISOR: psutil.Process(gateway.pid)}
    for child in found[SUPERVISOR].children():
        with contextlib.suppress(psutil.NoSuchProcess, ValueError, IndexError):
            words = child.cmdline()
            found[f"worker {words[words.index('gateway.supervise.worker') + 1]}"] = child
    return found


async def quiet(gateway: Instance, number: int, store: int, engine: int) -> Quiet:
    """Wait until nothing runs, or as long as that may take, and look. Callers have hung up.

    ``store`` and ``engine`` are ports.
    """
    began = monotonic()
    status = await _status(gateway)
    while _runs(status) and monotonic() - began < PATIENCE:
        await asyncio.sleep(0.25)
        status = await _status(gateway)
    waited = monotonic() - began
    await asyncio.sleep(max(0.0, SETTLED - waited))
    looks = []
    for _ in range(5):  # each may meet a probe of the engines under way
        looks.append((*_files(gateway, store, engine), await _tasks(gateway)))
        await asyncio.sleep(0.2)
    text = await gateway.get("/metrics")
    series, labels = series_of(text)
    status = await _status(gateway)
    return Quiet(
        round=number,
        waited=round(waited, 2),
        in_flight=status["in_flight"],
        places=_places(status),
        files=_least([look[0] for look in looks]),
        to_store=_least([look[1] for look in looks]),
        to_engine=_least([look[2] for look in looks]),
        tasks=_least([look[3] for look in looks]),
        series=series,
        labels=labels,
        metrics=text,
    )


def series_of(text: str) -> tuple[int, dict[str, frozenset[str]]]:
    """How many series a scrape has, and the values of each label but for buckets' edges."""
    labels: dict[str, set[str]] = {}
    count = 0
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            count += 1
            for name, value in one.labels.items():
                if name != "le":
                    labels.setdefault(name, set()).add(value)
    return count, {name: frozenset(values) for name, values in labels.items()}


async def _status(gateway: Instance) -> dict[str, Any]:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        return await gateway.status()
    return {"processes": [{"state": "silent"}]}


def _runs(status: Mapping[str, Any]) -> bool:
    up = all(process["state"] == "up" for process in status["processes"])
    return not up or bool(status.get("in_flight") or _places(status))


def _places(status: Mapping[str, Any]) -> int:
    """Places in use of all tenants' ``concurrent``; 1 where the store did not tell."""
    shown = status["tenants"]["shown"]
    if any(tenant["quotas"] is None for tenant in shown):
        return 1
    quotas = [quota for tenant in shown for quota in tenant["quotas"]]
    held = sum(quota["used"] for quota in quotas if quota["name"] == "concurrent requests")
    return int(held + sum(tenant["in_flight"] for tenant in shown))


def _files(
    gateway: Instance, store: int, engine: int
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Descriptors by process: all but those to store and engine, then those."""
    files, to_store, to_engine = {}, {}, {}
    for name, process in processes(gateway).items():
        with contextlib.suppress(psutil.NoSuchProcess):
            lines = process.net_connections("tcp")
            ports = Counter(line.raddr.port for line in lines if line.raddr)
            to_store[name], to_engine[name] = ports[store], ports[engine]
            files[name] = process.num_fds() - ports[store] - ports[engine]
    return files, to_store, to_engine


async def _tasks(gateway: Instance) -> dict[str, int]:
    status = await _status(gateway)
    return {
        f"worker {process['process']}": process["status"]["tasks"]
        for process in status["processes"]
        if process.get("status")
    }


def _least(looks: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = {name for look in looks for name in look}
    return {name: min(look[name] for look in looks if name in look) for name in sorted(names)}
