"""What all workers count, those that have ended included, so that no counter ever falls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from gateway.supervise import merge
from gateway.supervise.handover import LastWords
from gateway.supervise.process import Worker

# Seconds between questions: what a killed worker counted since the last one is lost. A scrape of
# many series takes its time, so the pause is a hundred times as long, and within these bounds.
SOONEST, LATEST = 1.0, 10.0
INCIDENTS = 1000  # the latest, as one process keeps

Workers = Callable[[], Sequence[Worker]]


class Ledger:
    """Asks the workers that run and remembers those that ran.

    ``workers`` gives those whose words have not been buried.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._ended: list[Metric] = []
        self._incidents: deque[msgspec.Raw] = deque(maxlen=INCIDENTS)
        self.restarts = 0

    def bury(self, words: LastWords) -> None:
        """A worker has ended: its gauges go, its counters and incidents stay."""
        self._ended = merge.merged([self._ended, merge.outlasting(merge.read(words.metrics))])
        self._incidents.extend(words.incidents)

    @property
    def ended(self) -> Sequence[Metric]:
        """What workers that have ended had counted."""
        return self._ended

    async def remember(self) -> None:
        """Ask each worker now and then, for ever, for what it would take with it if killed."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await _listen(self._workers())
            await asyncio.sleep(min(LATEST, max(SOONEST, 100 * (clock() - began))))

    async def metrics(self) -> bytes:
        """The scrape of all workers. One that does not answer keeps its counters in it."""
        fresh = await _listen(self._workers())
        # Taken together, without an await between: no worker is in both, or in neither.
        ended, said = self._ended, [(w.said.metrics, w in fresh) for w in self._workers()]
        return await asyncio.to_thread(_summed, ended, said, self.restarts)

    async def incidents(self) -> list[Mapping[str, Any]]:
        """The latest incidents of all, newest first."""
        await _listen(self._workers())
        known = [*self._incidents]
        for worker in self._workers():
            known += worker.said.incidents
        return merge.newest_first(map(msgspec.json.decode, known), INCIDENTS)


async def _listen(workers: Sequence[Worker]) -> set[Worker]:
    """Those that answered. One that is being started has nothing to say yet."""
    asked = [worker for worker in workers if worker.up]
    answered = await asyncio.gather(*(worker.listen() for worker in asked))
    return {worker for worker, answers in zip(asked, answered, strict=True) if answers}


def _summed(ended: list[Metric], said: Sequence[tuple[bytes, bool]], restarts: int) -> bytes:
    """``said`` is each worker's series, and whether it is of now or remembered."""
    own = CounterMetricFamily(
        "poolgate_worker_restarts",
        "Worker processes started again after they ended",
        value=restarts,
    )
    sources: list[list[Metric]] = [ended, [own]]
    for series, now in said:
        families = merge.read(series)
        sources.append(families if now else merge.outlasting(families))
    return merge.exposition(merge.merged(sources))
