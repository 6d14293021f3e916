"""Requests to engines: aiohttp's own bytes, and a small body without a task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import aiohttp
import pytest
from multidict import CIMultiDict

from gateway.edge.outgoing import AT_ONCE, OutgoingRequest

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
AUTOMATIC = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
HEADERS = {"content-type": "application/json", "Accept-Encoding": "identity", "X-Request-Id": "r"}


class Engine:
    """Answers every request, and keeps what it was sent, a connection apart."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.seen)
        self.seen.append(b"")
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                self.seen[number] += head + await reader.readexactly(length)
                writer.write(ANSWER)
        writer.close()


@pytest.fixture
async def engine():
    engine = Engine()
    async with await asyncio.start_server(engine.serve, "127.0.0.1") as server:
        engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x?a=%20"
        yield engine


async def post(session, url, headers, data):
    async with session.post(url, data=data, headers=CIMultiDict(headers)) as answer:
        assert await answer.read() == b"ok"


async def pieces(*of: bytes) -> AsyncIterator[bytes]:
    for piece in of:
        yield piece


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (HEADERS, lambda: b'{"a": 1}'),
        ({}, lambda: b"{}"),
        ({"Accept": "text/plain", "User-Agent": "me"}, lambda: b"{}"),
        ({"Connection": "close"}, lambda: b"{}"),
        ({"x": "1", "X": "2"}, lambda: b"{}"),
        (HEADERS, lambda: b""),
        (HEADERS, lambda: b"x" * AT_ONCE),
        (HEADERS, lambda: b"x" * (AT_ONCE + 1)),
        ({**HEADERS, "Content-Length": "3"}, lambda: pieces(b"a", b"bc")),
    ],
)
async def test_the_bytes_are_those_of_aiohttp(engine, headers, body):
    async with (
        aiohttp.ClientSession(skip_auto_headers=AUTOMATIC) as theirs,
        aiohttp.ClientSession(request_class=OutgoingRequest) as ours,
    ):
        await post(theirs, engine.url, headers, body())
        await post(ours, engine.url, headers, body())
    assert engine.seen[0] == engine.seen[1]


@pytest.mark.parametrize(("size", "tasks"), [(AT_ONCE, 0), (AT_ONCE + 1, 1)])
async def test_a_small_body_takes_no_task(engine, size, tasks):
    started = []

    def start(loop, work, **named):
        started.append(work)
        return asyncio.Task(work, loop=loop, **named)

    async with aiohttp.ClientSession(request_class=OutgoingRequest) as session:
        await post(session, engine.url, HEADERS, b"{}")  # whatever opening a connection starts
        loop = asyncio.get_running_loop()
        loop.set_task_factory(start)
        try:
            await post(session, engine.url, HEADERS, b"x" * size)
        finally:
            loop.set_task_factory(None)
    assert len(started) == tasks


async def test_a_connection_serves_one_request_after_the_other(engine):
    async with aiohttp.ClientSession(request_class=OutgoingRequest) as session:
        for _ in range(3):
            await post(session, engine.url, HEADERS, b"{}")
    assert len(engine.seen) == 1
    assert engine.seen[0].count(b"POST /v1/x?a=%20 HTTP/1.1\r\n") == 3


@pytest.mark.parametrize("protocol", [None, SimpleNamespace(writing_paused=True)])
async def test_where_a_write_would_wait_aiohttp_sends(engine, protocol, monkeypatch):
    left = []

    async def send(request, conn):
        left.append(conn.protocol)

    monkeypatch.setattr(aiohttp.ClientRequest, "send", send)
    async with aiohttp.ClientSession() as session:
        request = OutgoingRequest(
            "POST",
            aiohttp.client.URL(engine.url),
            data=b"{}",
            loop=asyncio.get_running_loop(),
            session=session,
        )
        await request.send(SimpleNamespace(protocol=protocol))
    assert left == [protocol]
