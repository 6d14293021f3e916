"""The line to a store: an answer is read whole by who asked, or by nobody."""

from __future__ import annotations

import asyncio

import pytest

from gateway.edge.replicas.line import Group, Line, StoreTrouble, Stream
from gateway.settings.store import parse_store
from valkey_server import cluster, server
from waiting import PATIENCE


@pytest.fixture(scope="module")
def valkey():
    with server() as running:
        yield running


@pytest.fixture
async def line(valkey):
    with valkey.client() as client:
        client.flushall()
    line = Line(parse_store(valkey.url))
    yield line
    await line.close()


async def test_an_answer_that_comes_after_a_cancellation_is_nobodys(valkey, line):
    await line.ask("SET", "secret", "of the one who left")
    for _ in range(20):
        asking = asyncio.ensure_future(line.ask("GET", "secret"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})  # redis-py may drop a cancellation as the answer comes
        assert await line.ask("ECHO", "mine") == b"mine"
    with valkey.frozen():
        asking = asyncio.ensure_future(line.ask("GET", "secret"))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert await line.ask("ECHO", "mine") == b"mine"


async def test_trouble_says_what_kind_and_no_more(valkey):
    line = Line(parse_store("redis://:planted-password@127.0.0.1:1"))
    with pytest.raises(StoreTrouble, match=r"^ConnectionError$"):
        await line.ask("GET", "planted-key")
    await line.close()


async def test_an_answer_that_does_not_come_ends_in_time(valkey):
    line = Line(parse_store(valkey.url), timeout=0.1)
    await line.ask("SET", "k", "old")
    with valkey.frozen():
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreTrouble, match=r"^TimeoutError$"):
                await line.ask("GET", "k")
    assert await line.ask("ECHO", "mine") == b"mine"
    await line.close()


GROUP = Group(b"secret", "r")


async def all_of(stream, pages=10):
    return [entry async for entry in stream.new(pages)]


async def test_a_stream_tells_each_entry_once_and_in_order(line):
    stream, reader = (Stream(line, GROUP, "x", 1000) for _ in range(2))
    for number in range(120):
        await stream.append(b"%d" % number)
    assert await all_of(reader, pages=1) == [b"%d" % number for number in range(50)]
    assert reader.more
    assert await all_of(reader) == [b"%d" % number for number in range(50, 120)]
    assert not reader.more
    assert await all_of(reader) == []


async def test_what_another_group_or_nobody_wrote_is_passed_over_and_counted(line):
    stream = Stream(line, GROUP, "x", 1000)
    await line.ask("XADD", GROUP.key("x"), "*", "e", "rubbish")
    await line.ask("XADD", GROUP.key("x"), "*", "other", "rubbish")
    await stream.append(b"good")
    assert await all_of(stream) == [b"good"]
    assert stream.unreadable == 2
    assert Group(b"another", "r").key("x") != GROUP.key("x")


async def test_after_a_loss_it_is_read_from_the_beginning(line):
    stream = Stream(line, GROUP, "x", 1000)
    await line.ask("XADD", GROUP.key("x"), f"{2**44}-0", "e", "of a clock that was ahead")
    await all_of(stream)
    await stream.resume()
    assert await all_of(stream) == []
    await line.ask("FLUSHALL")
    await stream.append(b"new")
    assert await all_of(stream) == []  # its id is lower
    await stream.resume()
    assert await all_of(stream) == [b"new"]


async def test_in_a_cluster_keys_of_a_group_are_in_one_place():
    with cluster() as node:
        line = Line(parse_store(f"redis+cluster://127.0.0.1:{node.port}"))
        stream = Stream(line, GROUP, "x", 1000)
        await stream.append(b"good")
        assert await all_of(stream) == [b"good"]
        assert await line.ask("EVAL", "return 1", 1, GROUP.key("standings")) == 1
        await line.close()
