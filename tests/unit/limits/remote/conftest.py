"""A store that answers by script: what a real one cannot be made to do at will."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from gateway.edge.tasks import Tasks
from gateway.limits.remote.limiter import RemoteLimiter
from gateway.limits.remote.link import Link
from valkey_server import Watch

TAKEN = [1, 100, 0, 0]


@dataclass
class ScriptedClient:
    """Gives ``answer(command, arguments)``, which may raise; ``gate`` holds answers back."""

    answer: Callable[[str, tuple[object, ...]], object] = lambda command, arguments: TAKEN
    sent: list[tuple[object, ...]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    closed: int = 0

    async def execute_command(self, *args: object) -> object:
        self.sent.append(args)
        if self.gate is not None:
            await self.gate.wait()
        return self.answer(str(args[0]), args[1:])

    async def aclose(self) -> None:
        self.closed += 1


@dataclass
class Bench:
    client: ScriptedClient
    link: Link
    watch: Watch
    tasks: Tasks

    def limiter(self, *, timeout: float = 0.05, lease: float = 30.0) -> RemoteLimiter:
        return RemoteLimiter(
            self.link,
            admit_without_store=False,
            timeout=timeout,
            lease=lease,
            clock=asyncio.get_running_loop().time,
            tasks=self.tasks,
            watch=self.watch,
        )


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    client, watch, tasks = ScriptedClient(), Watch(), Tasks()
    clock = asyncio.get_running_loop().time
    link = Link(client, timeout=0.05, clock=clock, tasks=tasks, watch=watch)
    yield Bench(client, link, watch, tasks)
    await link.close()
