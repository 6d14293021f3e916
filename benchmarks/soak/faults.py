"""What happens to the processes, at its place in the timetable."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from benchmarks.soak.engine import Engine
from benchmarks.soak.plan import Event, Trouble
from benchmarks.soak.rig import Instance, Store, configuration

MORTAL = 1  # the worker that is killed and told to end; the other lives as long as the run
PATIENCE = 60.0  # seconds for a trouble to be over
RELOADED, REFUSED = "configuration reloaded", "reload refused"


@dataclass(frozen=True, slots=True)
class Window:
    """When a trouble was: monotonic seconds."""

    trouble: Trouble
    began: float
    ended: float


class Faults:
    """Makes the troubles of a run. ``windows`` are those that were."""

    def __init__(self, engine: Engine, store: Store, gateway: Instance) -> None:
        self._engine = engine
        self._store = store
        self._gateway = gateway
        self._drains = False
        self.windows: list[Window] = []

    async def happen(self, events: Iterable[Event], begun: Callable[[], int]) -> None:
        """Each in its turn, once so many calls have begun. Raises TimeoutError."""
        for event in events:
            while begun() < event.at:
                await asyncio.sleep(0.02)
            began = monotonic()
            async with asyncio.timeout(PATIENCE):
                await self._happen(event)
            self.windows.append(Window(event.trouble, began, monotonic()))

    async def _happen(self, event: Event) -> None:
        match event.trouble:
            case Trouble.STORE_FROZEN:
                self._store.freeze()
                await asyncio.sleep(event.seconds)
                self._store.thaw()
            case Trouble.STORE_RESTARTED:
                self._store.kill()
                await asyncio.sleep(event.seconds / 2)
                self._store.start()
            case Trouble.ENGINE_RESTARTED:
                await self._engine.restart(event.seconds / 2)
            case Trouble.WORKER_KILLED:
                await self._end_worker(signal.SIGKILL)
            case Trouble.WORKER_TOLD_TO_END:
                await self._end_worker(signal.SIGTERM)
            case Trouble.RELOADED:
                self._drains = not self._drains
                await self._reload(self._configured(), RELOADED)
            case Trouble.BAD_RELOAD:
                await self._reload("backends: nonsense\n", REFUSED)
                self._gateway.config.write_text(self._configured())

    def _configured(self) -> str:
        disconnect = "drain" if self._drains else "cancel"
        gateway = self._gateway
        return configuration(
            self._engine.url, self._store.url, gateway.data, gateway.admin, disconnect
        )

    async def _end_worker(self, number: signal.Signals) -> None:
        """Signal one, and wait until another serves in its place."""
        victim = await _until(lambda: self._gateway.worker(MORTAL))
        os.kill(victim, number)

        async def replaced() -> int | None:
            pid = await self._gateway.worker(MORTAL)
            return pid if pid != victim else None

        await _until(replaced)

    async def _reload(self, text: str, answer: str) -> None:
        """Hand the gateway a file, and wait until it has said what it thinks of it."""
        before = said(self._gateway.said, answer)
        self._gateway.config.write_text(text)
        self._gateway.signal(signal.SIGHUP)
        while said(self._gateway.said, answer) == before:
            await asyncio.sleep(0.05)


def said(file: Path, words: str) -> int:
    """How many lines of a log hold these words."""
    return sum(words in line for line in file.read_text().splitlines())


async def _until(found: Callable[[], Awaitable[int | None]]) -> int:
    while True:
        value = await found()
        if value is not None:
            return value
        await asyncio.sleep(0.1)
