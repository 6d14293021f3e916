"""Work that may be told to stop."""

from __future__ import annotations

import asyncio

import pytest

from gateway.edge.tasks import Tasks, unless


async def test_work_that_ends_in_time_ends_the_waiting():
    stop, seen = asyncio.Event(), []

    async def work():
        seen.append("done")

    async def stopping():
        try:
            await stop.wait()
        finally:
            seen.append("no longer waited for")

    assert await unless(work(), stopping())
    assert seen == ["done", "no longer waited for"]


async def test_work_is_cancelled_and_waited_for_when_told_to_stop():
    stop, seen = asyncio.Event(), []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            seen.append("cleaned up")

    asyncio.get_running_loop().call_soon(stop.set)
    assert not await unless(work(), stop.wait())
    assert seen == ["cleaned up"]


async def test_what_work_raises_is_raised():
    async def work():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless(work(), asyncio.Event().wait())


@pytest.mark.parametrize(("raises", "lines"), [((), 1), (ValueError, 0), (KeyError, 1)])
async def test_a_failure_is_logged_unless_its_owner_takes_it(caplog, raises, lines):
    async def work():
        raise ValueError("what a prompt said")

    task = Tasks().spawn(work(), "work", raises=raises)
    with pytest.raises(ValueError, match="what"):
        await task
    assert caplog.messages == ["task work failed: ValueError"] * lines


async def test_work_that_never_waits_is_over_at_once_and_without_a_task():
    tasks, seen = Tasks(), []

    async def work():
        seen.append("done")

    tasks.run(work(), "quick")
    assert seen == ["done"]
    assert len(tasks) == 0


async def test_its_failure_is_told_by_type_alone(caplog):
    async def work():
        raise ValueError("of a prompt")

    Tasks().run(work(), "quick")
    assert [record.getMessage() for record in caplog.records] == ["task quick failed: ValueError"]


async def test_work_that_waits_must_not_be_run_so():
    seen = []

    async def work():
        try:
            await asyncio.sleep(1)
        finally:
            seen.append("ended")

    with pytest.raises(RuntimeError, match="slow waits"):
        Tasks().run(work(), "slow")
    assert seen == ["ended"]
