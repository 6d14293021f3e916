"""The one place that creates tasks, so that none is collected mid-flight or fails unheard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Tasks:
    """Background tasks of one owner: held while they run, cancelled together at the end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        *,
        raises: type[Exception] | tuple[()] = (),
    ) -> asyncio.Task[T]:
        """Start ``work``; a failure is logged by type, but for what it ``raises`` to its owner."""
        task = asyncio.create_task(work, name=name)  # noqa: TID251 - this is the one place
        self._running.add(task)
        task.add_done_callback(partial(self._finished, raises))
        return task

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work``, which never waits, to its end; a failure is logged as a task's is.

        A task for it would cost five times as much as most such work.
        """
        try:
            work.send(None)
        except StopIteration:
            return
        except Exception as failure:
            _tell(name, failure)
            return
        work.close()
        raise RuntimeError(f"{name} waits")

    def _finished(self, raises: type[Exception] | tuple[()], task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled() or (failure := task.exception()) is None:
            return
        if not isinstance(failure, raises):
            _tell(task.get_name(), failure)

    async def cancel(self) -> None:
        """Cancel what still runs and wait until it is over."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._running)


def _tell(name: str, failure: BaseException) -> None:
    log.error("task %s failed: %s", name, type(failure).__name__)


async def unless(work: Coroutine[Any, Any, Any], stop: Coroutine[Any, Any, Any]) -> bool:
    """Whether ``work`` ended before ``stop``; the other is cancelled. Raises what ``work`` does."""
    working = asyncio.create_task(work)  # noqa: TID251 - held, and awaited before this returns
    stopping = asyncio.create_task(stop)  # noqa: TID251 - likewise
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        return working.done()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
