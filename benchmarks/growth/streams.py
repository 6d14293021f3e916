"""1 to 1,000 open streams: processor time an event, and memory a stream.

The engine and the callers are asyncio on the load's core. The engine sends every stream an event at
a steady pace, as many a second over all streams whatever their number; the callers count what they
get, and each stream must end whole with every event in it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.growth.gate import Case, Gate, Rig, WrongAnswers, key_of
from benchmarks.proxy.rig import core_watch
from benchmarks.proxy.traffic import CHAT_PATH, MODEL, engine_routes

COUNTS = (1, 10, 100, 1_000)
EVENTS_A_SECOND = 1_000  # over all streams; a stream of a model is at 20 to 100
BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me of the sea, at length."}],
    "max_tokens": 4096,
    "stream": True,
}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def measure(rig: Rig, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each number of streams. This process is engine and callers: on the load's core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {rig.cores.rig})
    try:
        return asyncio.run(_measure(rig, say))
    finally:
        os.sched_setaffinity(0, cores)


async def _measure(rig: Rig, say: Callable[[str], None]) -> list[dict[str, Any]]:
    engine = _Engine(engine_routes())
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    starting = rig.gate(Case([url]))
    rows = []
    gate = await asyncio.to_thread(starting.__enter__)
    try:
        await asyncio.to_thread(gate.calibrated)
        for count in COUNTS:
            rows.append(await _row(rig, gate, engine, count))
            say(f"{rows[-1]}")
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)
        server.close()
    return rows


async def _row(rig: Rig, gate: Gate, engine: _Engine, count: int) -> dict[str, Any]:
    """All streams are open before the watch begins, and are ended after it is over."""
    engine.every = count / EVENTS_A_SECOND
    engine.over.clear()
    before = await asyncio.to_thread(gate.memory_mib)
    create_task = asyncio.get_running_loop().create_task
    callers = [create_task(_call(gate.port)) for _ in range(count)]
    while engine.open < count:
        await asyncio.sleep(0.05)
        if any(caller.done() for caller in callers):
            await asyncio.gather(*callers)
    await asyncio.sleep(rig.plan.warm_up)
    sent = engine.sent
    with core_watch(rig.cores.proxy, [gate.child]) as shares:
        await asyncio.sleep(2 * rig.plan.loaded)
    events = engine.sent - sent
    memory = await asyncio.to_thread(gate.memory_mib)
    engine.over.set()
    received = sum(await asyncio.gather(*callers))
    if received != engine.of_streams:
        raise WrongAnswers(f"{engine.of_streams} events sent, {received} received")
    engine.of_streams = 0
    rig.calls += count
    return {
        "streams": count,
        "events_per_s": round(events / (2 * rig.plan.loaded), 1),
        "cpu_us_event": round(shares["cpu"] * 1e6 / events, 1),
        # Of a few streams it is lost in what else grows at first.
        "kib_stream": round((memory - before) * 1024 / count, 1) if count >= 1_000 else None,
        "foreign": round(shares["foreign"], 3),
    }


async def _call(port: int) -> int:
    """One stream read to its end: how many events of text it had."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(BODY).encode()
    writer.write(
        f"POST {CHAT_PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key_of(0)}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n".encode()
        + body
    )
    events, end = 0, b""
    while piece := await reader.read(65536):
        events += (end[-6:] + piece).count(b'"delta"') - end[-6:].count(b'"delta"')
        end = (end + piece)[-64:]
    writer.close()
    if DONE not in end:
        raise WrongAnswers(f"a stream ended with {end!r}")
    return events


class _Engine:
    """Answers from a table, and chats with a stream that goes on until ``over`` is set."""

    def __init__(self, routes: dict[str, Any]) -> None:
        self._routes = {path: json.dumps(answer).encode() for path, answer in routes.items()}
        self._ids = itertools.count()
        self.over = asyncio.Event()
        self.every = 1.0  # seconds between two events of a stream
        self.open = 0
        self.sent = 0
        self.of_streams = 0  # events sent since the last count of them

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, *_ = head.decode("latin-1").split()
                body = await reader.readexactly(_length(head))
                if method == "POST" and path == CHAT_PATH and json.loads(body).get("stream"):
                    await self._stream(writer)
                else:
                    _answer(writer, self._routes.get(path))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        identity = f"chatcmpl-{next(self._ids)}"
        writer.write(HEAD)
        self.open += 1
        due = time.monotonic()
        while not self.over.is_set():
            _event(writer, identity, {"role": "assistant", "content": " waves"}, None)
            self.sent += 1
            self.of_streams += 1
            await writer.drain()
            due += self.every
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        self.open -= 1
        _event(writer, identity, {}, "stop")
        self.of_streams += 1
        _chunk(writer, DONE)
        writer.write(b"0\r\n\r\n")


def _event(
    writer: asyncio.StreamWriter, identity: str, delta: dict[str, str], reason: str | None
) -> None:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    told = {
        "id": identity,
        "object": "chat.completion.chunk",
        "created": 1796014456,
        "model": MODEL,
        "choices": [choice],
    }
    _chunk(writer, b"data: " + json.dumps(told).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _answer(writer: asyncio.StreamWriter, body: bytes | None) -> None:
    status, body = ("404 Not Found", b"{}") if body is None else ("200 OK", body)
    writer.write(
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0
