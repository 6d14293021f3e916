"""Sends a probe's requests to a live engine, in their order, and has each answer judged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gateway.core import probe
from gateway.core.probe import Check, Reply
from gateway.core.probe_text import Draft, Stream, Trace, Written, first_guess, traces
from gateway.edge.counting import LocalCounters
from gateway.edge.probing import Prober
from gateway.engines.base import Engine, Probe
from gateway.types import Counted, TextPrompt, Verdict

PATH = "/v1/completions"
DIALECT = "openai_completions"
TAKE_IGNORE_EOS = ("sglang", "vllm", "llama_cpp")
SALT_TOKENS = 1024
MOST_GUESSES = 16

Measure = Callable[[str], Awaitable[int | None]]
Told = Callable[[Check], None]


class GaveWay(Exception):
    """Others need the engine."""


class CannotRun(Exception):
    """Why the rest of a probe cannot be sent, for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send. Lengths in tokens, ``idle`` in seconds; ``seed`` is secret, one a run.

    ``quick``: the limit, one token over and the salt alone, once. ``aborts``: a request may be
    cancelled, which can corrupt others on some prefill/decode engines.
    """

    model: str
    seed: bytes
    limit: int
    context: int | None = None
    pool: int | None = None
    pairs: int = 1
    whole_pool: bool = False
    idle: float = 5.0
    quick: bool = False
    aborts: bool = True


class ProbeRun:
    """One run against one backend.

    ``measure`` counts a text's tokens as the engine does, None where it cannot. ``told`` hears of
    every check as it is made. ``may_go_on`` is asked before each prompt; ``gave_way`` says that
    once it said no, and the rest was not sent.
    """

    def __init__(
        self,
        plan: Plan,
        url: str,
        engine: Engine,
        prober: Prober,
        measure: Measure,
        told: Told,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._plan = plan
        self._url = url
        self._engine = engine
        self._prober = prober
        self._measure = measure
        self._told = told
        self._may_go_on = may_go_on
        self.gave_way = False
        self._sent: dict[str, Stream] = {}
        self._checks: list[Check] = []

    async def run(self) -> tuple[Check, ...]:
        """Every check; one of its own says where the rest could not be sent."""
        try:
            await self._all()
        except GaveWay:
            self.gave_way = True
        except CannotRun as error:
            self._note(Check("run", Verdict.UNVERIFIABLE, str(error), needed=True))
        return tuple(self._checks)

    async def _all(self) -> None:
        plan = self._plan
        if plan.limit <= probe.SHORTEST:
            raise CannotRun(f"a limit of {plan.limit} tokens is too small to probe")
        for length in self._lengths():
            await self._boundary(length)
        if not plan.quick:
            for delay in probe.abort_delays(plan.pairs if plan.aborts else 0):
                await self._abort(delay)
            for _ in range(plan.pairs):
                await self._together()
                await self._idle()
        await self._salt()

    def _lengths(self) -> Iterator[int]:
        plan = self._plan
        for _ in range(plan.pairs):
            yield from probe.lengths(plan.limit, plan.context, plan.pool, quick=plan.quick)

    async def _boundary(self, length: int) -> None:
        await self._fill()
        written = await self._write("P2", length)
        if length <= self._plan.limit:
            self._note(await self._judged("within", written))
        else:
            reply = await self._send(written)
            self._note(probe.judge_over(length, reply, await self._traces(written, reply)))

    async def _abort(self, delay: float) -> None:
        """P1 hangs up after ``delay`` seconds; P2's prompt is short, so that its answer is being
        written while what P1 left behind may still arrive.
        """
        leaving = await self._write("P1", self._plan.limit)
        written = await self._write("P2", max(probe.SHORTEST, self._plan.limit // 4))
        try:
            async with asyncio.timeout(delay):
                await self._send(leaving, stream=True)
        except TimeoutError:
            self._note(await self._judged("abort", written))
        else:
            self._note(probe.after_no_abort(await self._judged("abort", written)))

    async def _together(self) -> None:
        """Both ask at once, prompts of different lengths: an answer that reached the other of them
        shows by its words or its count.
        """
        short = max(probe.SHORTEST, self._plan.limit // 4)
        one, two = await self._write("P1", short), await self._write("P2", short + 1)
        replies = await asyncio.gather(self._send(one), self._send(two))
        for own, other, reply in zip((one, two), (two, one), replies, strict=True):
            found = await self._traces(own, reply)
            self._note(probe.judge_together(own.tokens, other.tokens, reply, found))

    async def _idle(self) -> None:
        await self._fill()
        written = await self._write("P2", self._plan.limit)
        await asyncio.sleep(self._plan.idle)
        self._note(await self._judged("idle", written))

    async def _salt(self) -> None:
        if DIALECT not in self._engine.traits.salt_fields:
            text = f"{self._engine.name} has no salt in this dialect"
            self._note(Check("salt", Verdict.UNVERIFIABLE, text))
            return
        written = await self._write("P1", _salt_tokens(self._plan.limit))
        first = await self._send(written, most=1)
        other = await self._send(written, tenant="P2", most=1)
        again = await self._send(written, most=1)
        if first.status != 200:
            again = first
        self._note(probe.judge_salt(written.tokens, other, again))

    async def _judged(self, check: str, written: Written) -> Check:
        """P2's answer to a prompt that fits."""
        reply = await self._send(written)
        found = await self._traces(written, reply)
        return probe.judge_within(check, written.tokens, reply, found)

    async def _fill(self) -> None:
        plan = self._plan
        for _ in range(probe.fills(plan.limit, plan.pool, whole_pool=plan.whole_pool)):
            written = await self._write("P1", plan.limit)
            reply = await self._send(written, most=1)
            if not reply.status:
                raise CannotRun("the engine does not answer a prompt within its limit")
            if reply.status != 200:  # nothing was left in memory: what follows proves nothing
                self._note(probe.judge_within("fill", written.tokens, reply, ()))

    async def _write(self, tenant: str, tokens: int) -> Written:
        """A prompt of exactly so many tokens, unlike any other."""
        draft = Draft(self._plan.seed, f"{tenant}.{len(self._sent) + 1}")
        sample = tokens // 2
        # A million words take longer to write and to search than the event loop may stand still.
        text = await asyncio.to_thread(draft.text, sample, 0)
        guess = first_guess(tokens, sample, await self._count(text))
        for _ in range(MOST_GUESSES):
            text = await asyncio.to_thread(draft.text, guess.words, guess.pad)
            count = await self._count(text)
            if count == tokens:
                written = Written(draft.label, text, draft.words(guess.words), tokens)
                self._sent[draft.label] = written.numbers
                return written
            better = guess.better(tokens - count)
            if better is None:
                break
            guess = better
        raise CannotRun(f"no prompt of exactly {tokens} tokens could be made")

    async def _count(self, text: str) -> int:
        count = await self._measure(text)
        if not count:
            raise CannotRun("nothing counts this model's tokens: name a --tokenizer")
        return count

    async def _send(
        self,
        written: Written,
        *,
        tenant: str | None = None,
        most: int | None = None,
        stream: bool = False,
    ) -> Reply:
        if not self._may_go_on():
            raise GaveWay
        room = probe.answer_room(written.tokens, self._plan.context)
        body: dict[str, Any] = {
            "model": self._plan.model,
            "prompt": written.text,
            "max_tokens": room if most is None else most,
            "temperature": 0,
            "stream": stream,
        }
        if self._engine.name in TAKE_IGNORE_EOS:
            body["ignore_eos"] = True
        if salt := self._engine.traits.salt_fields.get(DIALECT):
            body[salt] = f"{tenant or written.label.split('.')[0]}-{self._plan.seed.hex()[:16]}"
        asked = Probe("POST", PATH, body)
        answer = (await self._prober.ask(self._url, (asked,)))[asked]
        stated = self._engine.stated_limit(answer.status, answer.body)
        return probe.read_reply(answer.status, answer.body, too_long=stated is not None)

    async def _traces(self, written: Written, reply: Reply) -> tuple[Trace, ...]:
        others = {label: sent for label, sent in self._sent.items() if label != written.label}
        return await asyncio.to_thread(traces, reply.text, written.numbers, others)

    def _note(self, check: Check) -> None:
        self._checks.append(check)
        self._told(check)


def _salt_tokens(limit: int) -> int:
    """Short enough that a small cache keeps the prompt under both salts."""
    return max(probe.SHORTEST, min(SALT_TOKENS, limit // 4))


def local_measure(counters: LocalCounters, engine: str) -> Measure:
    """Counts with a tokenizer of ours. Raises ``AssetError`` where it cannot be loaded."""
    counter = counters.load(engine)

    async def measure(text: str) -> int | None:
        length = await asyncio.to_thread(counter.count, TextPrompt((text,)))
        return length.total if isinstance(length, Counted) else None

    return measure


def engine_measure(engine: Engine, url: str, model: str, prober: Prober) -> Measure:
    """Counts by the engine's own tokenise endpoint."""

    async def measure(text: str) -> int | None:
        calls = engine.oracle(TextPrompt((text,)), model)
        if not calls:
            return None
        answers = await prober.ask(url, (calls[0].probe,))
        return calls[0].count(answers[calls[0].probe])

    return measure
