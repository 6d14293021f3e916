from __future__ import annotations

import asyncio

from redis.exceptions import ConnectionError as Lost
from redis.exceptions import NoScriptError, ReadOnlyError

from gateway.limits.remote import calls
from gateway.limits.remote.calls import Reply
from gateway.limits.remote.link import LATE, NONSENSE, Trouble
from waiting import PATIENCE, until

CALL = calls.probe("t")
TAKEN = [1, 100, 0, 0]


def raising(error: Exception):
    def answer(command, arguments):
        raise error

    return answer


async def test_a_script_is_named_by_its_digest_and_taught_where_it_is_unknown(bench) -> None:
    def answer(command, arguments):
        if command == "EVALSHA":
            raise NoScriptError
        return TAKEN

    bench.client.answer = answer
    assert await bench.link.run(CALL) == Reply(1, 100 * 10**12, 0, ())
    by_digest, taught = bench.client.sent
    assert by_digest[:2] == ("EVALSHA", CALL.script.sha)
    assert taught[:2] == ("EVAL", CALL.script.source)
    assert by_digest[2:] == taught[2:] == (2, *CALL.keys, *CALL.args)


async def test_what_the_server_refused_was_surely_not_done_and_what_was_lost_perhaps(bench) -> None:
    bench.client.answer = raising(ReadOnlyError("LEAKMARK"))
    assert await bench.link.run(CALL) == Trouble("ReadOnlyError", perhaps_done=False)
    bench.client.answer = raising(Lost("LEAKMARK"))
    assert await bench.link.run(CALL) == Trouble("ConnectionError", perhaps_done=True)


async def test_an_answer_that_is_none_ends_all_connections(bench) -> None:
    bench.client.answer = lambda command, arguments: b"OK"
    assert await bench.link.run(CALL) == Trouble(NONSENSE, perhaps_done=True)
    assert bench.client.closed >= 1


async def test_what_comes_too_late_to_begin_is_not_sent(bench) -> None:
    past = asyncio.get_running_loop().time() - 1
    assert await bench.link.run(CALL, past) == Trouble(LATE, perhaps_done=False)
    assert bench.client.sent == []


async def test_down_at_the_first_failure_and_up_by_itself(bench) -> None:
    caught_up = asyncio.Event()

    async def catch_up() -> None:
        caught_up.set()

    bench.link.when_up(catch_up)
    bench.client.answer = raising(Lost())
    for _ in range(3):
        await bench.link.run(CALL)
    assert not bench.link.up
    bench.client.answer = lambda command, arguments: TAKEN
    await until(caught_up.is_set)
    assert bench.link.up
    assert bench.watch.states == [True, False, True]


async def test_a_failure_from_before_the_recovery_is_old_news(bench) -> None:
    began = asyncio.get_running_loop().time()
    bench.link.failed("first", "t", began)
    await until(lambda: bench.link.up)  # the probe answers
    bench.link.failed("late", "t", began)
    assert bench.link.up


async def test_a_probe_that_takes_nothing_is_no_recovery(bench) -> None:
    bench.client.answer = lambda command, arguments: [0, 100, 0, 0]
    bench.link.failed("x", "t", asyncio.get_running_loop().time())
    await asyncio.sleep(0.01)
    assert not bench.link.up


async def test_repaired_keys_are_told(bench) -> None:
    bench.client.answer = lambda command, arguments: [1, 100, 0, 2]
    await bench.link.run(CALL)
    assert bench.watch.repairs == 2


async def test_closing_ends_a_search(bench) -> None:
    bench.client.answer = raising(Lost())
    await bench.link.run(CALL)
    await asyncio.wait_for(bench.link.close(), PATIENCE)
    assert len(bench.tasks) == 0
