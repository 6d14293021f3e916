"""Carries what workers must know of each other from each to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from gateway.edge.peers import Word, together
from gateway.supervise.process import Silent, Worker

PEERS = "/peers"  # where a worker takes the others' word, by PUT, and gives its own
EVERY = 0.25  # seconds


async def relay(workers: Callable[[], Sequence[Worker]], wanted: Callable[[], bool]) -> None:
    """For ever, as long as ``wanted`` says so."""
    said: dict[Worker, Word] = {}
    while True:
        if wanted():
            up = [worker for worker in workers() if worker.up]
            said = {worker: word for worker, word in said.items() if worker in up}
            for worker, word in zip(
                up, await asyncio.gather(*(_exchange(each, said) for each in up)), strict=True
            ):
                if word is not None:
                    said[worker] = word
        await asyncio.sleep(EVERY)


async def _exchange(worker: Worker, said: dict[Worker, Word]) -> Word | None:
    """Its word for the others'; None where it does not answer: then its last one holds."""
    others = together(word for each, word in said.items() if each is not worker)
    try:
        answer = await worker.ask("PUT", PEERS, msgspec.json.encode(others))
        return msgspec.json.decode(answer.body, type=Word) if answer.status == 200 else None
    except (Silent, msgspec.MsgspecError):
        return None
