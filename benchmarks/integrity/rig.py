"""A gateway in a process of its own, a simulated engine with its oracle, and tenants' clients.

The gateway is told nothing of the engine's faults: it sees the engine's port. The engine runs here,
so that the oracle can be read afterwards.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import aiohttp

from gateway.simulate import Handle, SimulateSettings, running
from gateway.simulate.oracle import Truth

T = TypeVar("T")
Body = dict[str, Any]
TENANTS = tuple(f"tenant-{number}" for number in range(20))
SECRET = "a secret of the benchmark's own"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES, GENERATE = "/v1/messages", "/v1/responses", "/generate"
STOPS = ("[DONE]", "message_stop", "response.completed", "response.incomplete")
PATIENCE = 30.0
CONFIG = "gateway.yaml"
OFF: dict[str, Any] = {  # nothing is withheld
    "latency": {"action": "off"},
    "completeness": {"action": "flag"},
    "binding": {"action": "flag"},  # so that the engine's ids are the gateway's
    "cached_tokens": {"action": "flag"},
    "prompt_tokens": {"sample": 0.0},
}
ALL: dict[str, Any] = {
    "secret": SECRET,
    "latency": {"action": "hold"},
    "completeness": {"action": "block"},
    "binding": {"action": "block"},
    "cached_tokens": {"action": "block"},
    "prompt_tokens": {"sample": 1.0, "action": "block"},
    "sentinel": {"place": "system_end", "scan": 1.0, "action": "block"},
    "fingerprints": {"action": "block", "learning": "0s"},
}


class GatewayGone(Exception):
    """The gateway ended before it was ready; its own words are on standard error."""


@dataclass(frozen=True)
class Reply:
    """What a client got. ``raw`` is everything, to the end or to the cut."""

    request_id: str
    status: int
    raw: bytes
    stream: bool

    @property
    def withheld(self) -> bool:
        """Refused to the client after the engine had answered."""
        return b"response_withheld" in self.raw

    @property
    def before_first_byte(self) -> bool:
        """Withheld, and nothing of the answer had been sent."""
        return self.withheld and self.status == 502

    @property
    def success(self) -> bool:
        """A client takes it for a complete answer."""
        if self.status != 200 or self.withheld or b'data: {"error"' in self.raw:
            return False
        return not self.stream or any(stop.encode() in self.raw for stop in STOPS)

    @property
    def text(self) -> str:
        """The content of a streamed chat."""
        lines = (line for line in self.raw.decode().splitlines() if line.startswith("data: {"))
        choices = [one for line in lines for one in json.loads(line[6:]).get("choices", ())]
        return "".join(one["delta"].get("content") or "" for one in choices)


class Rig:
    """The running pair, and a client for every tenant."""

    def __init__(
        self, engine: Handle, http: aiohttp.ClientSession, data: str, admin: str, log: Path
    ) -> None:
        self.engine = engine
        self._log = log
        self._http = http
        self._data = data
        self._admin = admin

    async def ask(self, tenant: str, path: str, body: Body, cut_after: float = PATIENCE) -> Reply:
        """Send and read to the end. The client goes away after ``cut_after`` seconds."""
        seen, request_id, status = b"", "", 0
        try:
            async with (
                asyncio.timeout(cut_after),
                self._http.post(
                    self._data + path, json=body, headers={"x-api-key": tenant}
                ) as reply,
            ):
                status, request_id = reply.status, reply.headers.get("x-request-id", "")
                async for part in reply.content.iter_any():
                    seen += part
        except (aiohttp.ClientPayloadError, TimeoutError):
            if cut_after == PATIENCE and not seen:
                raise
        return Reply(request_id, status, seen, bool(body.get("stream")))

    async def chat(self, tenant: str, text: str, most: int, **more: Any) -> Reply:
        """A streamed chat of one turn."""
        return await self.ask(tenant, CHAT, chat(text, most) | {"stream": True} | more)

    async def incidents(self) -> list[dict[str, Any]]:
        """Those the gateway still has (the last 1,000)."""
        async with self._http.get(self._admin + "/incidents") as reply:
            found: list[dict[str, Any]] = await reply.json()
            return found

    def records(self) -> Iterator[dict[str, Any]]:
        """The gateway's record of each request, in the order they ended."""
        for line in self._log.read_bytes().splitlines():
            if line.startswith(b"{") and b'"ttft_s":' in line and b'"request_id":' in line:
                record = json.loads(line)
                if "duration_s" in record:
                    yield record

    async def checked(self, check: str, verdict: str) -> int:
        """How many answers got a verdict, by the gateway's own counter."""
        series = f'poolgate_checks_total{{check="{check}",verdict="{verdict}"}} '
        async with self._http.get(self._admin + "/metrics") as reply:
            lines = (await reply.text()).splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(series))

    async def ready(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the gateway knows the engine. Raises TimeoutError, GatewayGone."""
        async with asyncio.timeout(PATIENCE):
            while not await self._is_ready():
                if process.returncode is not None:
                    raise GatewayGone
                await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        try:
            async with self._http.get(self._admin + "/readyz") as reply:
                return reply.status == 200
        except aiohttp.ClientError:
            return False

    async def truths(self) -> Mapping[str, Truth]:
        """The oracle's records, once nothing runs."""
        async with asyncio.timeout(PATIENCE):
            while not self.engine.idle:  # noqa: ASYNC110 - it has no event for this
                await asyncio.sleep(0.02)
        return self.engine.truths

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest of the prompts that reached the engine."""
        return max(self.engine.counters.prompt_lengths, default=0)


def chat(text: str, most: int) -> Body:
    """A chat of one turn."""
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "max_tokens": most}


def call(path: str, text: str, most: int, stream: bool) -> Body:
    """The same question in the dialect of ``path``."""
    if path == COMPLETIONS:
        return {"model": "m", "prompt": text, "max_tokens": most, "stream": stream}
    if path == RESPONSES:
        return {"model": "m", "input": text, "max_output_tokens": most, "stream": stream}
    if path == GENERATE:
        return {"text": text, "sampling_params": {"max_new_tokens": most}, "stream": stream}
    return chat(text, most) | {"stream": stream}


class Texts:
    """A source of text for each tenant, which no other tenant has."""

    def __init__(self, sources: Sequence[str], seed: int) -> None:
        self._of = dict(zip(TENANTS, sources, strict=True))
        self.dice = random.Random(seed)

    def piece(self, tenant: str, chars: int) -> str:
        """A window of the tenant's text, wherever it falls."""
        source = self._of[tenant]
        start = self.dice.randrange(max(1, len(source) - chars))
        return source[start : start + chars]


async def side_by_side(jobs: Iterable[Awaitable[T]], many: int) -> list[T]:
    """Run the jobs, ``many`` at a time; their results in order."""
    gate = asyncio.Semaphore(many)

    async def one(job: Awaitable[T]) -> T:
        async with gate:
            return await job

    return await asyncio.gather(*map(one, jobs))


@asynccontextmanager
async def rig(
    sim: SimulateSettings, integrity: Mapping[str, Any], **backend: Any
) -> AsyncIterator[Rig]:
    """Engine and gateway, until the block ends."""
    async with (
        running(sim) as engine,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        data, admin = _free_port(), _free_port()
        config = _config(engine.url, data, admin, integrity, backend)
        with tempfile.TemporaryDirectory() as folder, _written(Path(folder), config) as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway", "serve", "--config", f"{folder}/{CONFIG}"),
                stdout=log,
                stderr=log,
            )
            try:
                here = "http://127.0.0.1"
                there = f"{here}:{data}", f"{here}:{admin}"
                both = Rig(engine, http, *there, Path(folder, "log"))
                await both.ready(process)
                yield both
            except GatewayGone:
                log.seek(0)
                print(log.read().decode(), file=sys.stderr)
                raise
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


def _written(folder: Path, config: Mapping[str, Any]) -> BinaryIO:
    """Write the gateway's configuration (YAML has JSON in it); its open log."""
    (folder / CONFIG).write_text(json.dumps(config))
    return (folder / "log").open("w+b")


def _config(
    url: str, data: int, admin: int, integrity: Mapping[str, Any], backend: Mapping[str, Any]
) -> dict[str, Any]:
    entry = {
        "name": "sim",
        "url": url,
        "tokenizer": "poolgate-tiny",
        "calibration": {"every": "0s"},
    }
    keys = [{"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in TENANTS]
    return {
        "listen": f"127.0.0.1:{data}",
        "admin": f"127.0.0.1:{admin}",
        "backends": [entry | dict(backend)],
        "tenants": keys,
        "integrity": dict(integrity),
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
