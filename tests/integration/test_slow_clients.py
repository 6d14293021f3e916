"""Rows 8 and 74: who is slow holds no connection for ever, and no memory."""

from __future__ import annotations

import asyncio
import re
import socket
import statistics
import time

import psutil
import pytest

import framings
from fakes.raw_engine import chunk, delta, head
from framings import SECOND, ask, sized
from integration.conftest import gateway_for
from integration.test_serve import served
from waiting import PATIENCE, until

STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
WHOLE = sized(framings.SIZE)
DONE = b"data: [DONE]\n\n"
MIB = 2**20


async def dial(port, receive_buffer=None):
    """A connection whose kernel buffer for answers may be small."""
    client = socket.socket()
    if receive_buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


async def until_closed(reader):
    """What comes until the other end hangs up, and after how many seconds."""
    began = time.monotonic()
    seen = b""
    try:
        async with asyncio.timeout(PATIENCE):
            while data := await reader.read(65536):
                seen += data
    except ConnectionError:
        pass
    return seen, time.monotonic() - began


def ended(app, reason):
    text = app.metrics.render().decode()
    name = re.escape(f'poolgate_connections_ended_total{{reason="{reason}"}}')
    return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])


def open_connections(app):
    return float(re.search(r"^poolgate_connections (\S+)$", app.metrics.render().decode(), re.M)[1])


async def trickle(writer, data, every):
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(every)


@pytest.mark.parametrize("begin", [b"", WHOLE], ids=["first", "kept alive"])
async def test_row_74_a_head_that_comes_byte_by_byte_ends_by_its_deadline(engine, begin):
    async with gateway_for(engine.url, timeouts={"headers": "400ms"}) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.servers.data_port)
        if begin:
            writer.write(begin)
            await reader.readuntil(b'"total_tokens": 11}}')
            await asyncio.sleep(0.6)  # idle between requests is not a slow head
        sending = asyncio.ensure_future(trickle(writer, b"POST /" + b"a" * 2000, 0.02))
        _, seconds = await until_closed(reader)
        sending.cancel()
        writer.transport.abort()
        assert seconds > 0.3
        assert ended(app, "headers") == 1
        assert open_connections(app) == 0
    assert len(engine.received) == bool(begin)


async def test_row_74_a_connection_that_asks_nothing_ends(engine):
    waits = {"headers": "300ms", "keep_alive": "500ms"}
    async with gateway_for(engine.url, timeouts=waits) as app:
        for begin in (b"", WHOLE):
            reader, writer = await asyncio.open_connection("127.0.0.1", app.servers.data_port)
            writer.write(begin)
            seen, seconds = await until_closed(reader)
            writer.transport.abort()
            assert seen.startswith(b"HTTP/1.1 200") is bool(begin)
            assert seconds > 0.25
        assert ended(app, "headers") == 1  # the other one was only idle


async def test_row_74_no_deadline_of_clients_cuts_a_long_answer(engine):
    """Nor a body that takes its time within its own deadline."""

    async def script(request, wire):
        await asyncio.sleep(1.0)
        wire.write(head(kind="text/event-stream", chunked=True) + chunk(delta("a")))
        await asyncio.sleep(1.0)
        wire.write(chunk(delta("b", "stop")) + chunk(DONE) + chunk(b""))

    engine.script = script
    waits = {"headers": "200ms", "keep_alive": "200ms", "write_idle": "200ms"}
    async with gateway_for(engine.url, timeouts=waits) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.servers.data_port)
        request = sized(b"%d" % len(STREAM), body=STREAM)
        writer.write(request[:-40])
        await asyncio.sleep(0.6)
        writer.write(request[-40:])
        seen, seconds = await until_closed(reader)
        writer.transport.abort()
        assert DONE in seen
        assert seconds > 1.9
        assert ended(app, "headers") == ended(app, "write_idle") == 0


async def endless(request, wire):
    """An answer that never ends, as fast as it is taken."""
    wire.write(head(kind="text/event-stream", chunked=True))
    piece = b"".join(chunk(delta("x" * 4000)) for _ in range(16))
    while not wire.is_closing():
        if wire.get_write_buffer_size() < MIB:
            wire.write(piece)
            request.sent = getattr(request, "sent", 0) + len(piece)
        await asyncio.sleep(0)


async def test_row_74_a_client_that_takes_nothing_is_cut_off_and_the_engine_freed(engine):
    engine.script = endless
    async with gateway_for(engine.url, timeouts={"write_idle": "500ms"}) as app:
        client = await dial(app.servers.data_port, 16 * 1024)
        client.send(sized(b"%d" % len(STREAM), body=STREAM))
        began = time.monotonic()
        await until(lambda: engine.received and engine.received[0].closed.is_set())
        assert time.monotonic() - began > 0.4
        await until(lambda: 'outcome="client_gone"' in app.metrics.render().decode())
        assert ended(app, "write_idle") == 1
        assert open_connections(app) == 0
        client.close()


async def test_row_74_a_client_that_is_slow_but_reads_is_not(engine):
    engine.script = endless
    loop = asyncio.get_running_loop()
    async with gateway_for(engine.url, timeouts={"write_idle": "2500ms"}) as app:
        client = await dial(app.servers.data_port, 64 * 1024)
        client.send(sized(b"%d" % len(STREAM), body=STREAM))
        taken, began = 0, time.monotonic()
        while time.monotonic() - began < 5.0:  # some MB/s, far below what the engine could send
            taken += len(await loop.sock_recv(client, 64 * 1024))
            await asyncio.sleep(0.01)
        assert taken > MIB
        assert ended(app, "write_idle") == 0
        client.close()


async def test_row_74_others_are_answered_while_hundreds_are_slow(engine):
    async with gateway_for(engine.url, timeouts={"headers": "4s", "body": "4s"}) as app:
        port = app.servers.data_port
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for number, (_, writer) in enumerate(slow):
            writer.write(WHOLE[: -9 if number % 2 else 30])  # a body, or a head, that stays out
        taken = []
        for _ in range(50):
            began = time.monotonic()
            assert (await ask(port, SECOND)).statuses == [200]
            taken.append(time.monotonic() - began)
        assert statistics.median(taken) < 1.0
        closed = [await until_closed(reader) for reader, _ in slow]
        told = [seen for seen, _ in closed if seen]
        assert 0 < len(told) <= 150  # fewer where the machine stood still before it read a head
        assert all(b"request_body_timeout" in seen for seen in told)
        assert ended(app, "headers") == 300 - len(told)
        for _, writer in slow:
            writer.transport.abort()
    assert len(engine.received) == 50


@pytest.mark.parametrize(("bound", "reason"), [("total", "total"), ("per_address", "per_address")])
async def test_row_74_connections_over_the_bound_are_told_and_let_go(engine, bound, reason):
    async with gateway_for(engine.url, connections={bound: 3}) as app:
        port = app.servers.data_port
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0.05)
        refused = await ask(port)
        assert refused.statuses == [503]
        assert b"too_many_connections" in refused.raw
        assert b"Retry-After: 1\r\n" in refused.raw
        assert refused.closed
        assert ended(app, reason) == 1
        assert open_connections(app) == 3
        held.pop()[1].close()
        await asyncio.sleep(0.05)
        assert (await ask(port, SECOND)).statuses == [200]
        for _, writer in held:
            writer.close()


async def settled(engine, streams):
    """How much of each stream was taken once no more is: all are stalled then."""
    async with asyncio.timeout(30):
        before = []
        while True:
            await asyncio.sleep(0.7)
            sent = [getattr(received, "sent", 0) for received in engine.received]
            if len(sent) == streams and sent == before:
                return sent
            before = sent


async def test_row_8_stalled_clients_hold_the_engine_back_and_no_memory(engine):
    """Twenty that read nothing of 200 MiB each; then one that reads all of it."""
    engine.script = endless
    request = sized(b"%d" % len(STREAM), body=STREAM)
    async with served("--backend", engine.url, "--no-access-log") as (process, url, _):
        port, memory = int(url.rpartition(":")[2]), psutil.Process(process.pid).memory_info
        await ask(port, request, patience=1.0)  # what is loaded at first use is no stream's
        engine.received.clear()
        before = memory().rss
        clients = [await dial(port, 16 * 1024) for _ in range(20)]
        for client in clients:
            client.send(request)
        sent = await settled(engine, len(clients))
        stalled = memory().rss - before
        for client in clients:
            client.close()
        assert stalled < 20 * 2 * MIB
        assert max(sent) < 32 * MIB  # what kernels hold; unhindered it is hundreds
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        taken = highest = 0
        while taken < 200 * MIB:
            taken += len(await reader.read(MIB))
            if taken // MIB % 8 == 0:
                highest = max(highest, memory().rss - before)
        writer.transport.abort()
        print(f"RSS: +{stalled / MIB:.1f} MiB of 20 stalled, +{highest / MIB:.1f} of 200 MiB read")
        assert highest < 60 * MIB
