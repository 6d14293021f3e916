"""One real engine at a time, a tap in front of it that sees every byte, and a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from gateway.app import App
from gateway.edge.exchange import Exchange
from gateway.settings import NoSecrets, parse

REPOSITORY = Path(__file__).parents[2]
RUN_ENGINE = REPOSITORY / "scripts" / "engines" / "run_engine.py"
INSTALLED = Path(os.environ.get("POOLGATE_ENGINES") or REPOSITORY / ".engines")
MODEL = "tiny"
TOKENIZER = "qwen3"  # the tiny model's
CONTEXT = 1024
STOP_SECONDS = 30
START_SECONDS = "600"  # on a busy machine three processes take minutes
# Where the gateway asks an engine to count a prompt that it does not render itself.
ORACLES = re.compile(rb"POST \S*(?:/tokenize|/input_tokens|/count_tokens) HTTP/1.1\r\n")
REFRESH = "1h"  # discovery asks once, so that what the tap sees later is the client's doing


@dataclass(frozen=True)
class Recipe:
    """How one engine is started: its name for run_engine.py, and flags."""

    name: str
    engine: str
    flags: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        return (INSTALLED / f"{self.engine}.ready").exists()


LLAMA = Recipe("llama.cpp", "llama")
SGLANG = Recipe("SGLang", "sglang")
VLLM = Recipe("vLLM", "vllm", ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"))
# The incident's shape: the pool is half of the context that is advertised.
SMALL_POOL = Recipe("SGLang, small pool", "sglang", ("--max-total-tokens", "512"))
# The incident itself: prefill's pool is a quarter of the context, decode's is twice the context.
SGLANG_PD = Recipe("SGLang 0.5.19, prefill and decode", "sglang_pd")


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    recipe: Recipe
    url: str

    @property
    def name(self) -> str:
        return self.recipe.name


@contextmanager
def running(recipe: Recipe) -> Iterator[Engine]:
    """Start an engine, wait until it answers, stop it with all its processes."""
    command = [sys.executable, str(RUN_ENGINE), recipe.engine, "--context", str(CONTEXT)]
    process = subprocess.Popen(
        ["nice", *command, "--timeout", START_SECONDS, *recipe.flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("READY "):
            raise RuntimeError(f"{recipe.name} did not start: {process.stderr.read()}")
        yield Engine(recipe, line.split()[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_SECONDS)


# --- the tap ----------------------------------------------------------------------------------


@dataclass
class Tap:
    """Passes bytes through and counts those that go to the engine."""

    url: str = ""
    to_engine: int = 0
    counts_asked: int = 0

    async def serve(
        self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        engine_reader, engine_writer = await asyncio.open_connection(host, port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, engine_writer, self._note))
                group.create_task(self._pump(engine_reader, writer, lambda _chunk: None))
        except* ConnectionError:
            pass
        finally:
            writer.close()
            engine_writer.close()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        note: Callable[[bytes], None],
    ) -> None:
        while chunk := await source.read(65536):
            note(chunk)
            sink.write(chunk)
            await sink.drain()
        sink.close()

    def _note(self, chunk: bytes) -> None:
        self.to_engine += len(chunk)
        self.counts_asked += len(ORACLES.findall(chunk))


@asynccontextmanager
async def tapped(url: str) -> AsyncIterator[Tap]:
    host, port = url.removeprefix("http://").split(":")
    tap = Tap()

    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(tap.serve(host, int(port), reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        tap.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield tap
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


# --- the gateway ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def words(self) -> str:
        """Its error message, else the beginning of its text."""
        try:
            error = json.loads(self.body)
        except ValueError:
            return self.body.decode(errors="replace")[:300]
        inner = error.get("error", error) if isinstance(error, dict) else error
        message = inner.get("message", inner) if isinstance(inner, dict) else inner
        return str(message)[:300]


def refused(answer: Answer) -> bool:
    """Engines refuse a stream either with its status, or with 200 and an error inside."""
    return answer.status != 200 or _complaint(answer) is not None


def statement(answer: Answer) -> str:
    """The answer in a few words."""
    if answer.status != 200:
        return f"{answer.status} {answer.words}"
    return _complaint(answer) or "200"


def _complaint(answer: Answer) -> str | None:
    """What an answer of status 200 says against the request, if anything."""
    for said in _objects(answer.body):
        inner = said.get("response") if isinstance(said.get("response"), dict) else said
        error = inner.get("error") or (said if said.get("type") == "error" else None)
        if error:
            message = error.get("message", error) if isinstance(error, dict) else error
            return f"200, then an error: {message}"
        meta = said.get("meta_info") or {}
        finish = meta.get("finish_reason") or {}
        if finish.get("type") == "abort":  # SGLang's native stream, with a token of something
            return (
                f"200 with {len(said['output_ids'])} token computed from a prompt of"
                f" {meta['prompt_tokens']}, then: {finish['message']}"
            )
    return None


def _objects(body: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of an answer, or of its events."""
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line[:5] == b"data:"]
    for text in lines or [body]:
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


@dataclass
class Pair:
    """An engine with a gateway in front of it, and a client of both."""

    engine: Engine
    tap: Tap
    app: App
    http: aiohttp.ClientSession
    exchanges: dict[str, Exchange] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.app.data_url

    @property
    def limit(self) -> int:
        """The longest prompt, as the gateway discovered it."""
        return self.app.generation.runtime.backends[0].capacity(MODEL).tokens

    @property
    def facts(self) -> Any:
        [seen] = self.app.generation.runtime.backends[0].discovery.snapshot.workers.values()
        return seen.facts[0]

    @property
    def discovery(self) -> dict[str, Any]:
        """What the gateway found out, for the record."""
        return {
            "engine": self.engine.name,
            "version": self.facts.version,
            "limit": self.limit,
            "context": self.facts.context_tokens,
            "pool": self.facts.pool_tokens,
        }

    async def direct(self, path: str, body: Any) -> Answer:
        return await self._post(self.engine.url + path, body)

    async def through(self, path: str, body: Any, *, key: str = "") -> Answer:
        return await self._post(self.url + path, body, key)

    async def exchange(self, answer: Answer) -> Exchange:
        """What the gateway recorded of a request, once it has judged the answer."""
        async with asyncio.timeout(10):
            while answer.headers["x-request-id"] not in self.exchanges:
                await asyncio.sleep(0.001)
        return self.exchanges.pop(answer.headers["x-request-id"])

    async def _post(self, url: str, body: Any, key: str = "") -> Answer:
        # llama-server hangs up after a stream without saying so; the gateway knows that, we too.
        extra = {"Connection": "close"} if body.get("stream") else {}
        if key:
            extra["x-api-key"] = key
        async with self.http.post(url, json=body, headers=extra) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, headers, await answer.read())


@asynccontextmanager
async def gateway_before(
    engine: Engine,
    *,
    uncountable: str = "refuse",
    calibration: Mapping[str, Any] | None = None,
    backend: Mapping[str, Any] | None = None,
    limit: Mapping[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[Pair]:
    """``uncountable``: what becomes of prompts the gateway cannot count.

    ``backend`` and ``limit`` are further settings there, ``more`` further sections.
    Not calibrated unless asked for: the tap counts what the engine is asked for a client.
    """
    refreshed = {"refresh": REFRESH, "stale_after": REFRESH, "when_uncountable": uncountable}
    app = App()
    async with tapped(engine.url) as tap:
        one = {
            "name": "live",
            "url": tap.url,
            "tokenizer": TOKENIZER,
            "limit": {**refreshed, **(limit or {})},
            "calibration": calibration or {"every": "0s"},
            **(backend or {}),
        }
        settings = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "backends": [one], **more}
        try:
            await app.start(parse(settings, NoSecrets()))
            async with aiohttp.ClientSession() as http:
                pair = Pair(engine, tap, app, http)
                _watch(app, pair.exchanges)
                yield pair
        finally:
            await app.stop()


def _watch(app: App, exchanges: dict[str, Exchange]) -> None:
    """Keep each exchange as the recorder gets it: with counts, usage and verdicts."""
    write = app.recorder.write

    def keep(exchange: Exchange) -> None:
        exchanges[exchange.request_id] = exchange
        write(exchange)

    app.recorder.write = keep  # type: ignore[method-assign]
