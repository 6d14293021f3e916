"""Drives sequences through the engine in real time: waits, counts, aborts, tells the oracle."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from gateway.edge.tasks import Tasks
from gateway.simulate import engine as pd
from gateway.simulate.oracle import Oracle
from gateway.simulate.timing import Timing
from gateway.simulate.tokeniser import Detokeniser, Tokeniser

REMEMBERED_LENGTHS = 100_000


@dataclass(slots=True)
class Counters:
    """What reached the engine. ``prompt_lengths`` has one entry a sequence, the newest last.

    ``prefilled`` and ``answered`` are each leg's own: sequences and their prompts' tokens, as
    prefill sent them and as decode answered for them.
    """

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    transfer_failures: int = 0
    prefilled: tuple[int, int] = (0, 0)
    answered: tuple[int, int] = (0, 0)
    prompt_lengths: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED_LENGTHS))


@dataclass(frozen=True, slots=True)
class Delta:
    """One token's worth of an answer. ``last`` comes exactly once for each index."""

    index: int
    text: str
    last: bool


class Driver:
    """Owns the running sequences of one engine."""

    def __init__(
        self, engine: pd.Engine, tokeniser: Tokeniser, oracle: Oracle, timing: Timing
    ) -> None:
        self.engine = engine
        self.oracle = oracle
        self.counters = Counters()
        self._tokeniser = tokeniser
        self._timing = timing
        self._tasks = Tasks()
        self._live: dict[str, pd.Sequence] = {}
        self._granted: dict[pd.Sequence, asyncio.Event] = {}

    @property
    def running(self) -> int:
        """Sequences that have not ended."""
        return len(self._live)

    def open(self, works: Sequence[pd.Work]) -> list[pd.Sequence]:
        """Take in all of a request's sequences or none. Raises EngineRefusal."""
        opened: list[pd.Sequence] = []
        for work in works:
            try:
                opened.append(self._take_in(work))
            except pd.EngineRefusal:
                self.counters.refused += 1
                self.end(opened)
                raise
        return opened

    def _take_in(self, work: pd.Work) -> pd.Sequence:
        self.counters.prompt_lengths.append(len(work.prompt))
        if work.owner in self._live:
            raise pd.EngineRefusal(f"Duplicate request ID detected: {work.rid}")
        sequence = self.engine.receive(work)
        self._live[work.owner] = sequence
        return sequence

    def abort(self, rid: str | None) -> None:
        """End the sequences of a request (None: of all) at their next step."""
        for sequence in self._live.values():
            if rid is None or sequence.work.rid == rid:
                sequence.finish = "abort"
                if waiting := self._granted.get(sequence):
                    waiting.set()

    async def tokens(self, sequence: pd.Sequence) -> AsyncGenerator[int, None]:
        """The answer's tokens as they come. Raises EngineRefusal; closing it early aborts."""
        try:
            await self._pages(sequence)
            await self._prefill(sequence)
            if sequence.finish:
                return
            self.counters.prefilled = _more(self.counters.prefilled, len(sequence.prefill_tokens))
            self.engine.transfer(sequence)
            while (token := self.engine.step(sequence)) is not None:
                yield token
                if pause := self._timing.between_tokens(sequence.rng):
                    await asyncio.sleep(pause)
        except pd.EngineRefusal as refusal:
            sequence.status = refusal.status
            self.counters.transfer_failures += 1
            raise
        finally:
            self._end(sequence)

    async def _pages(self, sequence: pd.Sequence) -> None:
        """Wait until both legs have pages for this sequence, or it is aborted."""
        self._grant()
        if sequence.stage is pd.Stage.WAITING and not sequence.finish:
            event = self._granted[sequence] = asyncio.Event()
            try:
                await event.wait()
            finally:
                del self._granted[sequence]

    def _grant(self) -> None:
        for started in self.engine.start():
            if event := self._granted.get(started):
                event.set()

    async def _prefill(self, sequence: pd.Sequence) -> None:
        """Compute the prompt chunk by chunk, for as long as that takes."""
        slowness = self._timing.slowness(sequence.rng, max(0, self.engine.prefilling - 1))
        if self._timing.base:
            await asyncio.sleep(self._timing.base)
        while not sequence.finish and (left := self.engine.uncached(sequence)):
            chunk = min(left, self.engine.settings.chunk)
            if pause := self._timing.prefill(chunk, slowness):
                await asyncio.sleep(pause)
            self.engine.prefill_chunk(sequence)

    def end(self, sequences: Sequence[pd.Sequence]) -> None:
        """Abort what of these has not ended yet, and free their pages."""
        for sequence in sequences:
            self._end(sequence)

    def _end(self, sequence: pd.Sequence) -> None:
        arrived = sequence.stage is pd.Stage.DECODE
        if not self.engine.close(sequence):
            return
        if arrived:
            self.counters.answered = _more(self.counters.answered, len(sequence.work.prompt))
        self._live.pop(sequence.work.owner, None)
        self.counters.prompt_tokens += len(sequence.work.prompt)
        self.counters.generation_tokens += len(sequence.output)
        self.oracle.record(self.engine.truth(sequence))
        if sequence.prefill_table:  # early_free: the writer outlives its request
            self._tasks.spawn(self._late_writer(sequence), f"late writer {sequence.work.owner}")
        self._grant()

    async def _late_writer(self, sequence: pd.Sequence) -> None:
        sequence.finish = ""
        await self._prefill(sequence)
        self.engine.late_transfer(sequence)
        self._grant()

    async def deltas(self, sequences: Sequence[pd.Sequence]) -> AsyncGenerator[Delta, None]:
        """All sequences' text, a token of each in turn. Raises EngineRefusal."""
        streams = [self._deltas(index, sequence) for index, sequence in enumerate(sequences)]
        try:
            while streams:
                for stream in tuple(streams):
                    delta = await anext(stream, None)
                    if delta is None:
                        streams.remove(stream)
                    else:
                        yield delta
        finally:
            for stream in streams:
                await stream.aclose()
            self.end(sequences)

    async def _deltas(self, index: int, sequence: pd.Sequence) -> AsyncGenerator[Delta, None]:
        text = Detokeniser(self._tokeniser)
        async with aclosing(self.tokens(sequence)) as tokens:
            async for token in tokens:
                piece = text.add(token)
                if sequence.finish:
                    break
                yield Delta(index, piece, last=False)
            else:
                piece = ""
        yield Delta(index, piece + text.flush(), last=True)

    async def answer(self, sequences: Sequence[pd.Sequence]) -> None:
        """Run sequences to their end side by side. Raises EngineRefusal."""
        try:
            if len(sequences) == 1:
                await self._drain(sequences[0])
            else:
                await self._drain_all(sequences)
        finally:
            self.end(sequences)

    async def _drain_all(self, sequences: Sequence[pd.Sequence]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for sequence in sequences:
                    group.create_task(self._drain(sequence))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _drain(self, sequence: pd.Sequence) -> None:
        async with aclosing(self.tokens(sequence)) as tokens:
            async for _ in tokens:
                pass

    async def stop(self) -> None:
        """Cancel what runs in the background and close the oracle's file."""
        await self._tasks.cancel()
        self.oracle.close()


def _more(counted: tuple[int, int], tokens: int) -> tuple[int, int]:
    return counted[0] + 1, counted[1] + tokens
