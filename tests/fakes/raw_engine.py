"""An engine on a raw socket: states its limits like SGLang, answers prompts by a script.

It sends exactly the bytes it is told, keeps every request it got, and notes when a peer closes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Script = Callable[["Received", asyncio.Transport], Awaitable[None]]


@dataclass
class Received:
    """One request as it came."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name):
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def json(self):
        return json.loads(self.body)


def head(status="200 OK", *, length=None, chunked=False, kind="application/json", more=()):
    """A response head."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def answer(body: bytes, **more) -> bytes:
    """A whole answer."""
    return head(length=len(body), **more) + body


def event(value) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


CHAT = {
    "id": "x",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
}


def delta(text, finish=None):
    return event(
        {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
    )


class RawEngine:
    """The server. ``script`` may be replaced at any time."""

    def __init__(self, limit=1018, context=1024):
        self.limit = limit
        self.context = context
        self.info = {}
        self.received: list[Received] = []
        self.probes = 0
        self.generation = 0
        self.script: Script = self.answer_chat
        self.answer_probes = True
        self.counts = lambda question: 10  # of /tokenize; None answers 404
        self.tokenized = []
        self.connections: list[_Connection] = []
        self._server = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def answer_chat(self, request, wire):
        wire.write(answer(json.dumps(CHAT).encode()))

    def server_info(self):
        return {
            "max_req_input_len": self.limit,
            "max_total_num_tokens": self.limit + 6,
            "allow_auto_truncate": False,
            "disaggregation_mode": "null",
            "version": "0.5.23",
            "startup_time": self.generation,
            "internal_states": [],
            **self.info,
        }

    async def probe(self, request, wire):
        if not self.answer_probes:
            return
        path = request.line.split()[1]
        self.probes += 1
        if path in ("/server_info", "/get_server_info"):
            wire.write(answer(json.dumps(self.server_info()).encode()))
        elif path == "/v1/models":
            models = {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": self.context}]}
            wire.write(answer(json.dumps(models).encode()))
        elif path == "/tokenize":
            self.tokenized.append(request.json)
            count = self.counts(request.json)
            told = answer(json.dumps({"count": count, "tokens": [1] * (count or 0)}).encode())
            wire.write(head("404 Not Found", length=0) if count is None else told)
        else:
            wire.write(head("404 Not Found", length=0))

    @asynccontextmanager
    async def running(self):
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        try:
            yield self
        finally:
            self._server.close()
            for connection in self.connections:
                connection.end()
            await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """One connection: requests in order, each answered by a task."""

    def __init__(self, engine):
        self._engine = engine
        self._buffer = b""
        self._tasks = set()
        self._open = []

    def connection_made(self, transport):
        self.transport = transport
        self._engine.connections.append(self)

    def data_received(self, data):
        self._buffer += data
        while (request := self._take()) is not None:
            self._open.append(request)
            asks = request.line.startswith("GET ") or "/tokenize" in request.line
            if not asks:
                self._engine.received.append(request)
            script = self._engine.probe if asks else self._engine.script
            task = asyncio.ensure_future(script(request, self.transport))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def connection_lost(self, error):
        for request in self._open:
            request.closed.set()

    def end(self):
        for task in self._tasks:
            task.cancel()
        self.transport.abort()

    def _take(self):
        found = _parse(self._buffer, len(self._engine.connections))
        if found is None:
            return None
        request, self._buffer = found
        return request


def _parse(buffer, number):
    """The first whole request in ``buffer`` and the rest, or None."""
    raw, separator, rest = buffer.partition(b"\r\n\r\n")
    if not separator:
        return None
    line, *fields = raw.decode("latin-1").split("\r\n")
    headers = [tuple(part.strip() for part in item.split(":", 1)) for item in fields]
    named = {key.lower(): value for key, value in headers}
    if named.get("transfer-encoding") != "chunked":
        length = int(named.get("content-length", 0))
        if len(rest) < length:
            return None
        return Received(line, headers, rest[:length], number), rest[length:]
    body = b""
    while True:
        size, separator, rest = rest.partition(b"\r\n")
        if not separator or len(rest) < int(size, 16) + 2:
            return None
        if int(size, 16) == 0:
            return Received(line, headers, body, number), rest[2:]
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
