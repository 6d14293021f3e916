from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Kind, Rejection
from gateway.limits.base import Charge, Concurrency, LimitKey, Unit
from waiting import PATIENCE, own_clock, until

SLOT = Charge(LimitKey("t", "slots"), Unit.SLOTS, Concurrency(5), 1)


def script_of(sent: tuple[object, ...]) -> str:
    """Which script a command ran, by the arguments only it has."""
    [lease] = [str(part) for part in sent if ":lease" in str(part)] or [""]
    return "probe" if "probe" in lease else ("settle" if "slots" in sent[-3:] else "reserve")


def answering(levels: list[int]):
    def answer(command, arguments):
        return [1, 100, 0, 0, *levels] if len(arguments) > 10 else [1, 100, 0, 0]

    return answer


async def test_nothing_is_decided_later_than_the_timeout(bench) -> None:
    limiter = bench.limiter(timeout=0.05)
    bench.client.gate = asyncio.Event()
    async with own_clock() as clock:
        with pytest.raises(Rejection) as caught:
            await limiter.reserve([SLOT])
        assert clock() < 0.15
    assert caught.value.kind is Kind.STORE_UNAVAILABLE
    assert caught.value.retry_after == 1


async def test_a_reservation_that_came_too_late_is_given_back(bench) -> None:
    limiter = bench.limiter(timeout=0.05)
    bench.client.answer = answering([0, 0])
    bench.client.gate = asyncio.Event()
    with pytest.raises(Rejection):
        await limiter.reserve([SLOT])
    bench.client.gate.set()
    await until(lambda: "settle" in [script_of(sent) for sent in bench.client.sent])
    assert len(limiter.running) == 0


async def test_a_lease_is_kept_until_it_ends(bench) -> None:
    limiter = bench.limiter()
    bench.client.answer = answering([0, 0])
    lease = await limiter.reserve([SLOT])
    assert lease.decisions[SLOT].remaining == 4
    assert len(limiter.running) == 1
    await lease.release()
    assert len(limiter.running) == 0
    await lease.release()
    assert [script_of(sent) for sent in bench.client.sent] == ["reserve", "settle"]


async def test_a_caller_that_leaves_cuts_no_command_off(bench) -> None:
    limiter = bench.limiter(timeout=PATIENCE)
    bench.client.answer = answering([0, 0])
    bench.client.gate = asyncio.Event()
    caller = asyncio.create_task(limiter.reserve([SLOT]))
    await until(lambda: bench.client.sent)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert len(bench.tasks) >= 1  # the command is still read to its end
    bench.client.gate.set()
    await until(lambda: len(bench.client.sent) == 2)
    assert [script_of(sent) for sent in bench.client.sent] == ["reserve", "settle"]


async def test_while_the_store_fails_nothing_is_sent(bench) -> None:
    limiter = bench.limiter()
    bench.client.answer = lambda command, arguments: b"nonsense"
    with pytest.raises(Rejection):
        await limiter.reserve([SLOT])
    sent = len(bench.client.sent)
    for _ in range(10):
        with pytest.raises(Rejection):
            await limiter.reserve([SLOT])
        with pytest.raises(Rejection):
            await limiter.peek([SLOT])
    assert len(bench.client.sent) <= sent + 1  # a probe
