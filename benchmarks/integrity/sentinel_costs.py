"""What sentinels cost: processor time a streamed token and a prompt token, beside the relay's.

Streams go through a whole gateway in this process, from an engine and to a client in others, many
at once and paced, so that each token comes in a read of its own as it does in service. The gateway
with sentinels and the one without take turns.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from aiohttp import ClientSession, web

from benchmarks.counting import texts
from gateway.app import App
from gateway.core.lexicon import lexicon
from gateway.core.sentinel import Sentinels
from gateway.core.sentinel_channels import Watch, sentinels_in
from gateway.core.sentinel_reader import SentinelReader
from gateway.dialects.base import AnswerReader
from gateway.dialects.openai_chat import OpenAiChat
from gateway.edge.sentinels import PREAMBLE
from gateway.settings import NoSecrets, parse

STREAMS, TOKENS, PACE = 40, 250, 0.02
ROUNDS = 5
NOW = 1_800_000_000.0
SECRET = "a secret of the benchmark's own"
SIZES = (4_000, 400_000, 4_000_000)
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}


def measured() -> dict[str, Any]:
    """All figures: microseconds of processor time a token, medians over rounds."""
    return {
        "reader_us": {name: _reading(events) for name, events in _streams().items()},
        "gateway_us": asyncio.run(_gateways()),
        "prompt": [_prompt(size) for size in SIZES],
    }


def markdown(costs: dict[str, Any]) -> Iterator[str]:
    """Lines of tables."""
    yield "| 1,000 streamed tokens, one an event | dialect's reader | with the scan | scan |"
    yield "| --- | ---: | ---: | ---: |"
    for name, (plain, scanning) in costs["reader_us"].items():
        yield f"| {name} | {plain:.1f} ms | {scanning:.1f} ms | {scanning - plain:.1f} ms |"
    plain, scanning = costs["gateway_us"]["off"], costs["gateway_us"]["on"]
    yield ""
    yield (
        f"The whole gateway's processor time for 1,000 streamed tokens, {STREAMS} streams of"
        f" {1 / PACE:.0f} tokens a second each: {plain:.1f} ms without sentinels, {scanning:.1f}"
        f" ms with them, {(scanning / plain - 1):+.0%}."
    )
    yield ""
    yield "| a prompt of | placing the marker | a 1,000 tokens | looking for a quotation, if ever |"
    yield "| --- | ---: | ---: | ---: |"
    for row in costs["prompt"]:
        each = row["mark_us"] / (row["bytes"] / 4_000)
        yield (
            f"| {row['bytes']:,} bytes | {row['mark_us']:,.0f} us | {each:.1f} us |"
            f" {row['quote_us'] / 1000:,.1f} ms |"
        )


# --- the reader alone -------------------------------------------------------------------------


def _words(count: int) -> list[str]:
    text = texts.prose(count * 12, random.Random(7))
    return [f" {word}" for word in text.split()[:count]]


def _streams() -> dict[str, list[bytes]]:
    """Chat streams of ten thousand events as engines write them: alike, and never alike."""
    words = _words(10_000)
    return {
        "events that differ in their text": [_event(word) for word in words],
        "with usage in every event": [
            _event(word, usage={"prompt_tokens": 9, "completion_tokens": place})
            for place, word in enumerate(words)
        ],
        "with logprobs": [
            _event(word, [{"token": word, "logprob": -0.1, "bytes": None, "top_logprobs": []}])
            for word in words
        ],
    }


def _event(text: str, logprobs: Sequence[object] = (), **more: object) -> bytes:
    choice = {
        "index": 0,
        "delta": {"content": text},
        "logprobs": {"content": logprobs} if logprobs else None,
        "finish_reason": None,
    }
    value = {
        "id": "chatcmpl-8d1f7a6e55", "object": "chat.completion.chunk", "created": 1764540000,
        "model": "m", "choices": [choice], **more,
    }  # fmt: skip
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _reading(events: list[bytes]) -> tuple[float, float]:
    """Milliseconds for a thousand events, without and with the scan."""
    dialect = OpenAiChat()
    body = {**BODY, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    request = dialect.parse("/v1/chat/completions", json.dumps(body).encode())
    cluster = Sentinels([SECRET.encode()], 86400.0, 3 * 86400.0, ["ann", "bob"])
    watch = Watch(
        lambda numbers: cluster.read(numbers, "ann", NOW), cluster.first_words(NOW), PREAMBLE
    )

    def plain() -> AnswerReader:
        return dialect.reader(request, status=200, content_type="text/event-stream")

    def scanning() -> AnswerReader:
        return SentinelReader(plain(), watch, streams=True)

    taken: dict[Callable[[], AnswerReader], list[float]] = {plain: [], scanning: []}
    for _ in range(ROUNDS):
        for make, times in taken.items():
            reader = make()
            began = time.process_time()
            for event in events:
                reader.receive(event)
            times.append((time.process_time() - began) / len(events) * 1e6)
    return statistics.median(taken[plain]), statistics.median(taken[scanning])


# --- the whole gateway ------------------------------------------------------------------------


async def _gateways() -> dict[str, float]:
    """Milliseconds of processor time for a thousand tokens, without and with sentinels."""
    taken: dict[str, list[float]] = {"off": [], "on": []}
    async with _process(_engine) as engine:
        url = await _received(engine)
        async with _gateway(url, {}) as off, _gateway(url, {"sentinel": {}}) as on:
            for _ in range(ROUNDS):
                for name, app in (("off", off), ("on", on)):
                    taken[name].append(await _load(app.data_url))
    return {name: statistics.median(times) for name, times in taken.items()}


async def _load(url: str) -> float:
    """The gateway's processor time for 1,000 tokens, less what this process takes idling."""
    async with _process(_client, url) as client:
        await _received(client)  # it has warmed up
        began = time.process_time()
        client.send("go")
        tokens = int(await _received(client))
        return (time.process_time() - began) / tokens * 1e6


@asynccontextmanager
async def _gateway(url: str, integrity: dict[str, Any]) -> AsyncIterator[App]:
    engine = {
        "name": "bench", "url": url, "engine": "openai", "tokenizer": "poolgate-tiny",
        "limit": {"max_prompt_tokens": 10_000}, "calibration": {"every": "0s"},
    }  # fmt: skip
    app = App()
    listen = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    await app.start(parse({**listen, "backends": [engine], "integrity": integrity}, NoSecrets()))
    try:
        yield app
    finally:
        await app.stop()


@asynccontextmanager
async def _process(work: Callable[..., None], *arguments: object) -> AsyncIterator[Connection]:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, *arguments), daemon=True)
    process.start()
    try:
        yield here
    finally:
        process.terminate()
        process.join()


async def _received(pipe: Connection) -> str:
    answer: str = await asyncio.to_thread(pipe.recv)
    return answer


def _engine(pipe: Connection) -> None:
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    events = [_event(word) for word in _words(TOKENS)]
    usage = {"prompt_tokens": 65, "completion_tokens": TOKENS, "total_tokens": TOKENS + 65}

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
            await asyncio.sleep(PACE)
        end = json.loads(_event("")[6:])
        end["choices"][0]["finish_reason"] = "stop"
        await response.write(b"data: " + json.dumps(end).encode() + b"\n\n")
        told = {"id": "x", "choices": [], "usage": usage}
        await response.write(b"data: " + json.dumps(told).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = site._server
    pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await asyncio.Event().wait()


def _client(pipe: Connection, url: str) -> None:
    asyncio.run(_ask(pipe, url))


async def _ask(pipe: Connection, url: str) -> None:
    async with ClientSession() as session:

        async def stream() -> None:
            async with session.post(url + "/v1/chat/completions", json=BODY) as answer:
                seen = await answer.read()
                assert seen.endswith(b"[DONE]\n\n"), seen[-300:]

        await stream()
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        await asyncio.gather(*(stream() for _ in range(STREAMS)))
        pipe.send(str(STREAMS * TOKENS))


# --- prompts ----------------------------------------------------------------------------------


def _prompt(size: int) -> dict[str, Any]:
    """Placing a marker in a prompt, and searching it for quoted sentinels: microseconds."""
    dialect = OpenAiChat()
    turn = {"role": "user", "content": texts.prose(size // 8, random.Random(3))}
    body = {"model": "m", "messages": [{"role": "system", "content": "Be kind."}, *[turn] * 8]}
    request = dialect.parse("/v1/chat/completions", json.dumps(body).encode())
    cluster = Sentinels([SECRET.encode()], 86400.0, 3 * 86400.0, ["ann", "bob"])
    watch = Watch(lambda numbers: cluster.read(numbers, "ann", NOW), cluster.first_words(NOW))

    def mark() -> None:
        phrase = lexicon().phrase(cluster.numbers("ann", NOW))
        dialect.marked(request, PREAMBLE + phrase)

    return {
        "bytes": len(request.raw),
        "mark_us": _median(mark),
        "quote_us": _median(lambda: sentinels_in(request.body, watch)),
    }


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(15):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e6
