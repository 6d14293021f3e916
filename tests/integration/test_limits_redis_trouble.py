"""Row 36: whatever happens to the store, decisions in time by the configured mode, and recovery."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

import valkey_server
from gateway.errors import Kind, Rejection
from gateway.limits.base import (
    Charge,
    Concurrency,
    Limiter,
    LimitKey,
    Refused,
    Unit,
    Unlimited,
    Used,
)
from gateway.limits.gcra import Quota
from gateway.limits.remote import calls
from gateway.limits.remote.names import quota_key
from gateway.limits.watch import Outcome, Unwatched
from waiting import Clock, own_clock

DAY = 86400.0
TIMEOUT = 0.3
SLACK = 0.25  # of work in between; less than a second timeout, which is when sockets give up
RECOVERY = 5.0


@pytest.fixture
def server() -> Iterator[valkey_server.Server]:
    with valkey_server.server("--rename-command", "SCRIPT", "ADMIN-SCRIPT") as running:
        yield running
        assert running.without_end() == []  # row 30


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    async with own_clock() as clock:
        yield clock


def requests(limit: int = 1000, tenant: str = "t") -> Charge:
    return Charge(LimitKey(tenant, "requests"), Unit.REQUESTS, Quota(limit, DAY, limit), 1)


def tokens(cost: int, limit: int = 1000) -> Charge:
    return Charge(LimitKey("t", "tokens"), Unit.TOKENS, Quota(limit, DAY, limit), cost)


def slot(limit: int = 3) -> Charge:
    return Charge(LimitKey("t", "slots"), Unit.SLOTS, Concurrency(limit), 1)


async def timed(clock: Clock, asked: Awaitable[Any]) -> tuple[Any, float]:
    """What came of it, a rejection too, and after how many seconds."""
    began = clock()
    try:
        outcome = await asked
    except Rejection as rejection:
        outcome = rejection
    return outcome, clock() - began


async def until_exact(limiter: Limiter, clock: Clock) -> None:
    """The store decides again, and soon."""
    began = clock()
    while clock() - began < RECOVERY:
        with contextlib.suppress(Rejection):
            lease = await limiter.reserve([requests(tenant="probe")])
            if not isinstance(lease, Unlimited | Refused):
                await lease.release()
                return
        await asyncio.sleep(0.02)
    raise AssertionError("the store was not found again")


Trouble = Callable[[valkey_server.Server], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def frozen(server: valkey_server.Server) -> AsyncIterator[None]:
    with server.frozen():
        yield


@asynccontextmanager
async def refusing(server: valkey_server.Server) -> AsyncIterator[None]:
    server.kill()
    yield
    server.start()


@asynccontextmanager
async def answering(server: valkey_server.Server, answer: bytes | None) -> AsyncIterator[None]:
    """Something else on its port: says this to everything, or resets connections at once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            connection = writer.get_extra_info("socket")
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        else:
            with contextlib.suppress(ConnectionError):
                while await reader.read(65536):
                    writer.write(answer)
        writer.close()

    server.kill()
    other = await asyncio.start_server(serve, "127.0.0.1", server.port)
    try:
        yield
    finally:
        other.close()
        server.start()


@asynccontextmanager
async def configured(server: valkey_server.Server, name: str, value: str) -> AsyncIterator[None]:
    with server.client() as client:
        before = client.config_get(name)[name]
        client.config_set(name, value)
        try:
            yield
        finally:
            client.config_set(name, before)


@asynccontextmanager
async def signed_out(server: valkey_server.Server) -> AsyncIterator[None]:
    """A password is demanded that the limiter does not give, of open connections too."""
    with server.client() as client:
        client.config_set("requirepass", "LEAKMARK")
        client.execute_command("AUTH", "LEAKMARK")
        client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
        try:
            yield
        finally:
            client.config_set("requirepass", "")


@asynccontextmanager
async def replica(server: valkey_server.Server) -> AsyncIterator[None]:
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@asynccontextmanager
async def busy(server: valkey_server.Server) -> AsyncIterator[None]:
    """Somebody's endless script: the server says BUSY."""

    def occupy() -> None:
        with server.client() as client, contextlib.suppress(redis.RedisError):
            client.config_set("busy-reply-threshold", 20)
            client.eval("while true do end", 0)

    occupied = asyncio.create_task(asyncio.to_thread(occupy))
    await asyncio.sleep(0.2)
    try:
        yield
    finally:
        with server.client() as client:
            client.execute_command("ADMIN-SCRIPT", "KILL")
        await occupied


TROUBLES: dict[str, Trouble] = {
    "frozen": frozen,
    "refused": refusing,
    "reset": lambda server: answering(server, None),
    "loading": lambda server: answering(server, b"-LOADING loading the dataset in memory\r\n"),
    "nonsense": lambda server: answering(server, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "another protocol's reply": lambda server: answering(server, b"+OK\r\n"),
    "out of memory": lambda server: configured(server, "maxmemory", "1"),
    "read-only": replica,
    "wrong password": signed_out,
    "busy": busy,
}


CASES = [*((name, "refuse") for name in TROUBLES), ("frozen", "allow"), ("refused", "allow")]


@pytest.mark.parametrize(("name", "mode"), CASES, ids=lambda case: case)
async def test_row_36_decided_in_time_by_the_mode_and_exact_again(
    server: valkey_server.Server,
    clock: Clock,
    name: str,
    mode: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = valkey_server.Watch()
    async with valkey_server.limiter_on(
        server.url, when_store_fails=mode, timeout=TIMEOUT, watch=watch
    ) as limiter:
        await until_exact(limiter, clock)
        held = await limiter.reserve([requests(), slot()])
        with caplog.at_level(logging.INFO, logger="gateway"):
            async with TROUBLES[name](server):
                first = await asyncio.gather(
                    *(timed(clock, limiter.reserve([requests(), slot()])) for _ in range(50))
                )
                await asyncio.sleep(0.6)  # past a probe
                later = [await timed(clock, limiter.reserve([requests()])) for _ in range(50)]
                peeked, _ = await timed(clock, limiter.peek([requests()]))
            await until_exact(limiter, clock)
            await held.release()
        outcomes = [outcome for outcome, _ in first + later]
        if mode == "refuse":
            assert all(outcome.kind is Kind.STORE_UNAVAILABLE for outcome in outcomes)
            assert {outcome.retry_after for outcome in outcomes} == {1}
        else:
            assert all(isinstance(outcome, Unlimited) for outcome in outcomes)
        assert isinstance(peeked, Rejection)
        assert max(seconds for _, seconds in first) < TIMEOUT + SLACK
        assert max(seconds for _, seconds in later) < 0.05 + SLACK  # nobody waits any more
        assert watch.states == [True, False, True]
        failing, well = (
            record.getMessage() for record in caplog.records if record.name.startswith("gateway")
        )
        assert failing.startswith("limiter store fails: ")
        assert well.startswith("limiter store answers again after ")
        assert "LEAKMARK" not in caplog.text
        assert str(server.port) not in caplog.text
        told = Outcome.UNAVAILABLE if mode == "refuse" else Outcome.UNCHECKED
        assert [outcome for outcome, _ in watch.decisions].count(told) >= 100
        await all_given_back(limiter)


async def all_given_back(limiter: Limiter) -> None:
    """Of what nobody was told to have, nothing stays taken."""
    for _ in range(100):
        with contextlib.suppress(Rejection):
            standing = await limiter.peek([requests(), slot()])
            if (standing[requests()].remaining, standing[slot()].remaining) == (1000, 3):
                return
        await asyncio.sleep(0.02)
    pytest.fail(str(standing))


async def test_row_36_five_seconds_frozen_cost_nobody_more_than_the_timeout(
    server: valkey_server.Server, clock: Clock
) -> None:
    async with valkey_server.limiter_on(server.url, timeout=TIMEOUT) as limiter:
        for _ in range(20):
            await (await limiter.reserve([requests(), slot()])).release()
        waits: list[float] = []
        with server.frozen():
            began = clock()
            while clock() - began < 5.0:
                _, seconds = await timed(clock, limiter.reserve([requests(), slot()]))
                waits.append(seconds)
                await asyncio.sleep(0.02)
        assert max(waits) < TIMEOUT + SLACK
        assert sum(seconds > TIMEOUT / 2 for seconds in waits) < 5  # only who met it first waited
        await until_exact(limiter, clock)
        await all_given_back(limiter)


async def test_row_34_what_ends_while_the_store_fails_is_settled_afterwards_and_once(
    server: valkey_server.Server, clock: Clock
) -> None:
    async with valkey_server.limiter_on(server.url, timeout=TIMEOUT) as limiter:
        settled = await limiter.reserve([tokens(500), slot()])
        released = await limiter.reserve([tokens(100), slot()])
        with server.frozen():
            for end in (settled.settle(Used(30, 20)), released.release()):
                _, seconds = await timed(clock, end)
                assert seconds < TIMEOUT + SLACK
            await settled.release()
        await until_exact(limiter, clock)
        for _ in range(100):
            standing = await limiter.peek([tokens(1), slot()])
            if standing[slot()].remaining == 3:
                break
            await asyncio.sleep(0.02)
        assert standing[tokens(1)].remaining == 950
        assert server.keys_like("*:lease:*") == server.keys_like("*:probe:lease")


async def test_a_reservation_that_arrives_after_its_withdrawal_takes_nothing(
    server: valkey_server.Server,
) -> None:
    async with valkey_server.limiter_on(server.url) as limiter:
        link = limiter._limiter._link
        late = calls.reserve("late", [requests(), slot()], 30_000)
        await link.run(calls.settle("late", "t", [requests(), slot()], None, mark=True))
        reply = await link.run(late)
        assert reply.code == calls.Verdict.WITHDRAWN
        await all_given_back(limiter)
        twice = calls.reserve("twice", [requests(), slot()], 30_000)
        assert (await link.run(twice)).code == calls.Verdict.TAKEN
        assert (await link.run(twice)).code == calls.Verdict.WITHDRAWN
        assert (await limiter.peek([requests()]))[requests()].remaining == 999


async def test_a_caller_that_leaves_while_the_store_is_slow_takes_nothing(
    server: valkey_server.Server,
) -> None:
    async with valkey_server.limiter_on(server.url, timeout=2.0) as limiter:
        await (await limiter.reserve([requests(), slot()])).release()
        with server.frozen():
            callers = [asyncio.create_task(limiter.reserve([requests(), slot()])) for _ in range(3)]
            await asyncio.sleep(0.1)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        await all_given_back(limiter)


@pytest.mark.parametrize("script_command", ["there", "renamed away"])
async def test_scripts_that_the_server_forgot_are_taught_again(script_command: str) -> None:
    options = () if script_command == "there" else ("--rename-command", "SCRIPT", "")
    with valkey_server.server(*options) as server:
        watch = valkey_server.Watch()
        async with valkey_server.limiter_on(server.url, watch=watch) as limiter:
            await limiter.reserve([requests()])
            if script_command == "there":
                with server.client() as client:
                    client.script_flush()
            outcome = await limiter.reserve([requests()])
            assert outcome.decisions[requests()].remaining == 998
        assert watch.states == [True]


async def test_after_a_restart_running_requests_have_their_slots_again(
    server: valkey_server.Server, clock: Clock
) -> None:
    async with valkey_server.limiter_on(server.url, timeout=TIMEOUT) as limiter:
        running = await limiter.reserve([slot(1), tokens(100)])
        server.restart()
        await timed(clock, limiter.reserve([requests()]))
        await until_exact(limiter, clock)
        for _ in range(100):  # the renewal follows the recovery
            outcome = await limiter.reserve([slot(1)])
            if isinstance(outcome, Refused):
                break
            await outcome.release()
            await asyncio.sleep(0.02)
        assert isinstance(outcome, Refused)
        await running.settle(Used(1, 1))
        assert not isinstance(await limiter.reserve([slot(1)]), Refused)
        # What it had reserved went with the old server: nothing is given back in the new one.
        assert (await limiter.peek([tokens(1)]))[tokens(1)].remaining == 1000


FOREIGN: dict[str, Callable[[redis.Redis, str], object]] = {
    "a list": lambda client, key: client.rpush(key, "x"),
    "text": lambda client, key: client.set(key, "hello"),
    "empty": lambda client, key: client.set(key, ""),
    "bytes": lambda client, key: client.set(key, b"\xff\x00"),
    "a number": lambda client, key: client.set(key, "12"),
    "out of range": lambda client, key: client.set(key, "1 9999999999999999"),
    "far too late": lambda client, key: client.set(key, "9" * 30 + " 0"),
    "a hash": lambda client, key: client.hset(key, "a", "b"),
    "a set": lambda client, key: client.sadd(key, "a"),
}


@pytest.mark.parametrize("charge", [requests(5), slot(5)], ids=["bucket", "slots"])
@pytest.mark.parametrize("put", FOREIGN.values(), ids=FOREIGN)
async def test_row_30_a_key_that_cannot_be_read_is_replaced(
    server: valkey_server.Server, put: Callable[[redis.Redis, str], object], charge: Charge
) -> None:
    watch = valkey_server.Watch()
    async with valkey_server.limiter_on(server.url, watch=watch) as limiter:
        with server.client() as client:
            put(client, quota_key(charge.key))
        lease = await limiter.reserve([charge])
        assert lease.decisions[charge].remaining == 4
        assert watch.repairs == 1
        with server.client() as client:
            client.delete(quota_key(charge.key))
            put(client, quota_key(charge.key))
        await lease.release()
        assert (await limiter.peek([charge]))[charge].remaining == 5
        assert watch.states == [True]


async def test_row_30_a_key_without_an_end_gets_one_and_blocks_nobody_for_ever(
    server: valkey_server.Server,
) -> None:
    watch = valkey_server.Watch()
    async with valkey_server.limiter_on(server.url, watch=watch) as limiter:
        charges = [requests(1), slot(1)]
        await limiter.reserve(charges)
        with server.client() as client:
            for charge in charges:
                client.persist(quota_key(charge.key))
        assert isinstance(await limiter.reserve(charges), Refused)
        assert server.without_end() == []
        assert watch.repairs == 2
        server.age(int(DAY) + 1)
        assert not isinstance(await limiter.reserve(charges), Refused)


async def test_a_hundred_thousand_tenants_in_an_outage_take_no_memory(
    server: valkey_server.Server,
) -> None:
    """Peers 24: a fallback that remembers every tenant would grow without bound."""
    async with valkey_server.limiter_on(
        server.url, when_store_fails="allow", timeout=TIMEOUT, watch=Unwatched()
    ) as limiter:
        memory = psutil.Process().memory_info
        with server.frozen():
            for n in range(2000):
                await limiter.reserve([requests(tenant=f"before-{n}")])
            gc.collect()
            before = memory().rss
            for n in range(100_000):
                await limiter.reserve([requests(tenant=f"tenant-{n}")])
            gc.collect()
        assert memory().rss - before < 5_000_000  # 50 bytes a tenant; a key alone is more


async def test_a_store_that_is_down_at_the_start_is_found_later(
    server: valkey_server.Server, clock: Clock
) -> None:
    server.kill()
    async with valkey_server.limiter_on(server.url, timeout=TIMEOUT) as limiter:
        outcome, _ = await timed(clock, limiter.reserve([requests()]))
        assert isinstance(outcome, Rejection)
        server.start()
        await until_exact(limiter, clock)


async def test_a_stall_of_this_process_is_not_held_against_the_store(
    server: valkey_server.Server,
) -> None:
    watch = valkey_server.Watch()
    timeout = 1.0
    async with valkey_server.limiter_on(server.url, timeout=timeout, watch=watch) as limiter:
        await asyncio.gather(*(limiter.reserve([requests()]) for _ in range(10)))
        with server.frozen():
            asked = [asyncio.create_task(limiter.reserve([requests()])) for _ in range(10)]
            await asyncio.sleep(0.03)  # they are sent
        time.sleep(1.4 * timeout)  # answered meanwhile, and nobody looks
        outcomes = await asyncio.gather(*asked)
        assert not any(isinstance(outcome, Unlimited | Refused) for outcome in outcomes)
        assert watch.states == [True]


async def test_closing_does_not_wait_for_a_frozen_store(
    server: valkey_server.Server, clock: Clock
) -> None:
    with server.frozen():
        began = clock()
        async with valkey_server.limiter_on(server.url, timeout=TIMEOUT) as limiter:
            await timed(clock, limiter.reserve([requests()]))
        assert clock() - began < 3 * TIMEOUT + SLACK


async def test_closing_ends_the_search_for_a_store_that_fails_at_once(
    server: valkey_server.Server, clock: Clock
) -> None:
    with server.client() as client:
        client.config_set("maxmemory", "1")
        for _ in range(20):  # wherever the cancellation meets the probe
            began = clock()
            async with valkey_server.limiter_on(server.url, timeout=TIMEOUT) as limiter:
                outcome, _ = await timed(clock, limiter.reserve([requests()]))
                assert isinstance(outcome, Rejection)
            assert clock() - began < 2.0


@pytest.mark.parametrize("user", ["", "gate"])
async def test_row_65_signed_in_with_a_password_that_shows_nowhere(
    server: valkey_server.Server, clock: Clock, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client() as client:
        client.acl_setuser(
            "gate", enabled=True, passwords=["+LEAKMARK@/"], keys=["*"], commands=["+@all"]
        )
        client.config_set("requirepass", "LEAKMARK@/")
        client.execute_command("AUTH", "LEAKMARK@/")
        for scheme, rest in (
            ("redis", f"127.0.0.1:{server.port}"),
            ("unix", f"{server.folder}/socket"),
        ):
            url = f"{scheme}://{user}:LEAKMARK%40%2F@{rest}"
            async with valkey_server.limiter_on(url, timeout=TIMEOUT) as limiter:
                lease = await limiter.reserve([requests()])
                assert not isinstance(lease, Unlimited | Refused)
                held = server_keys(client)
                await lease.release()
                client.config_set("requirepass", "other")
                client.acl_setuser("gate", enabled=True, reset_passwords=True, passwords=["+other"])
                client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
                outcome, _ = await timed(clock, limiter.reserve([requests()]))
                assert isinstance(outcome, Rejection)
                client.config_set("requirepass", "LEAKMARK@/")
                client.acl_setuser(
                    "gate", enabled=True, reset_passwords=True, passwords=["+LEAKMARK@/"]
                )
                await until_exact(limiter, clock)
            assert "LEAKMARK" not in f"{held} {outcome.message} {caplog.text}"
        client.config_set("requirepass", "")


def server_keys(client: redis.Redis) -> list[str]:
    return list(client.scan_iter("*"))


async def test_a_user_with_the_documented_rights_is_enough(server: valkey_server.Server) -> None:
    page = (Path(__file__).parents[2] / "docs/limits.md").read_text("utf-8")
    [rights] = re.findall(r"`(resetchannels [^`]+)`", page)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "gate", "on", ">secret", *rights.split())
        url = f"redis://gate:secret@127.0.0.1:{server.port}/1"
        watch = valkey_server.Watch()
        async with valkey_server.limiter_on(url, watch=watch) as limiter:
            lease = await limiter.reserve([tokens(10), slot()])
            assert not isinstance(lease, Unlimited | Refused)
            client.select(1)
            client.rpush(quota_key(requests().key), "not ours")
            await limiter.peek([tokens(10), slot(), requests()])
            await limiter._limiter.running.renew()
            await lease.settle(Used(20, 0))
        assert watch.states == [True]
        assert watch.repairs == 1
