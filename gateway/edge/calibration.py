"""Compares a backend's local counts with its engine's own, and lets the outcome rule.

One question after another, no generation, beside the tenants' traffic: requests never wait for a
comparison. What follows from it is ``gateway.core.calibration``'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from gateway.core import calibration
from gateway.core.calibration import Calibration, OnDifference, Pair, State
from gateway.core.capacity import models
from gateway.core.samples import Sample, samples
from gateway.edge.counting import LocalCounter, LocalCounters, Measurer
from gateway.edge.discovery import Discovery
from gateway.edge.probing import Prober
from gateway.engines.base import Engine, OracleCall
from gateway.tokens.encoder import FREELY, Means
from gateway.types import (
    Bounded,
    ChatPrompt,
    Counted,
    OpaquePrompt,
    ParsedRequest,
    Prompt,
    PromptLength,
    TokenIdPrompt,
    Unverifiable,
)

log = logging.getLogger(__name__)
SILENCES = 3  # unanswered in a row after which an engine is left in peace
RETRY = 60.0  # seconds after which one that fell silent is asked again
COUNTS_DIFFER = "counts_differ"
COUNTED_BY: Mapping[OnDifference, str] = MappingProxyType(
    {OnDifference.ENGINE: "engine", OnDifference.REFUSE: "nobody"}
)


class Counts:
    """A tokenizer's own counts of the samples, made once for all backends that count with it."""

    def __init__(self, counters: LocalCounters) -> None:
        self.counters = counters
        self._known: dict[tuple[str, str], PromptLength] = {}

    async def of(self, sample: Sample, engine: str) -> PromptLength:
        """How many tokens it is as that engine renders it, without any learnt offset."""
        key = engine, sample.name
        if key not in self._known:
            counter = self.counters.load(engine)
            self._known[key] = await asyncio.to_thread(counter.count, sample.prompt)
        return self._known[key]


class Calibrator:
    """Keeps one backend's calibration against ``counts``.

    ``model`` is asked about where workers tell no model's name. ``turns`` lets in as many backends
    as may be asked at once.
    """

    def __init__(
        self,
        name: str,
        url: str,
        prober: Prober,
        discovery: Discovery,
        counts: Counts,
        policy: calibration.Policy,
        model: str,
        clock: Callable[[], float],
        *,
        turns: asyncio.Semaphore,
    ) -> None:
        self._name = name
        self._url = url
        self._prober = prober
        self._discovery = discovery
        self._counts = counts
        self._turns = turns
        self._policy = policy
        self._model = model
        self._clock = clock
        self._compared_with: tuple[tuple[str, str], ...] = ()
        self._next = 0.0
        self.found = Calibration()

    async def run(self) -> None:
        """Compare whenever it is due, for ever. What is due is looked at after each round."""
        while self._policy.every:
            while self._due:
                async with self._turns:
                    await self.calibrate()
            await self._discovery.next_round()

    async def calibrate(self) -> None:
        """One comparison with the engine known now."""
        engine, now = self._discovery.engine, calibration.identity(self._discovery.snapshot)
        if engine is None:
            return
        pairs, broken_off = await self._pairs(engine)
        new = calibration.compare(
            pairs, self._clock(), broken_off=broken_off, learn_offset=self._policy.learn_offset
        )
        before = self.found
        same = now == self._compared_with
        self.found = calibration.succeed(before, new, same_engine=same)
        self._compared_with = now
        self._next = self._clock() + (RETRY if broken_off else self._policy.every)
        self._report(before)

    @property
    def consequence(self) -> OnDifference:
        """What holds now; ``IGNORE`` where counts are used as they are."""
        return calibration.consequence(self.found, self._policy.on_difference)

    def doubt(self, prompt: Prompt) -> str | None:
        """Why its local count is not claimed to be exact, as a fixed word; None where it is."""
        if isinstance(prompt, TokenIdPrompt):
            return None
        if self.consequence is OnDifference.MARGIN:
            return "differs"
        if self._policy.on_difference is not OnDifference.MARGIN or not self._policy.every:
            return None
        return "calibrating" if self._engine_is_new else None

    def margin(self, limit: int) -> int:
        """Tokens kept free below ``limit`` because counts differ."""
        if self.consequence is not OnDifference.MARGIN:
            return 0
        return calibration.margin(self.found, limit, self._policy.margin)

    def description(self) -> dict[str, Any]:
        """For operators: names and numbers."""
        found = self.found
        return {
            "state": found.state,
            "on_difference": self._policy.on_difference,
            "counted_by": COUNTED_BY.get(self.consequence, "tokenizer"),
            "compared": found.compared,
            "unanswered": found.unanswered,
            "differences": msgspec.to_builtins(found.differences),
            "worst_under": msgspec.to_builtins(found.worst_under),
            "engine_is_credible": found.credible,
            "offset": found.offset,
            "age_s": None if found.at is None else round(self._clock() - found.at, 1),
        }

    @property
    def _engine_is_new(self) -> bool:
        return calibration.identity(self._discovery.snapshot) != self._compared_with

    @property
    def _due(self) -> bool:
        known = calibration.identity(self._discovery.snapshot)
        if self._discovery.engine is None or not known:
            return False
        return known != self._compared_with or self._clock() >= self._next

    async def _pairs(self, engine: Engine) -> tuple[list[Pair], bool]:
        """Every sample both can count, and whether the engine fell silent over it."""
        await asyncio.to_thread(self._counts.counters.load, engine.name)
        model = next(iter(models(self._discovery.snapshot)), self._model)
        pairs: list[Pair] = []
        silent = 0
        for sample in samples():
            calls = engine.oracle(sample.prompt, model)
            ours = await self._counts.of(sample, engine.name) if calls else None
            if not calls or not isinstance(ours, Counted):
                continue
            theirs, answered = await self._ask(calls[0])
            pairs.append(_pair(sample, ours, theirs))
            silent = 0 if answered else silent + 1
            if silent == SILENCES:
                return pairs, True
        return pairs, False

    async def _ask(self, call: OracleCall) -> tuple[int | None, bool]:
        """The engine's count, if any, and whether it is in a state to answer."""
        answer = (await self._prober.ask(self._url, (call.probe,)))[call.probe]
        return call.count(answer), 0 < answer.status < 500

    def _report(self, before: Calibration) -> None:
        """One log line a change of state."""
        found = self.found
        if (found.state, found.offset) == (before.state, before.offset):
            return
        level = logging.WARNING if found.state is State.DIFFERS else logging.INFO
        log.log(
            level,
            "backend %s: calibration %s: %d samples compared, %d differ%s; counted by the %s",
            self._name,
            found.state,
            found.compared,
            len(found.differences),
            f", offset of chats {found.offset}" if found.offset else "",
            COUNTED_BY.get(self.consequence, "tokenizer"),
        )


class CalibratedMeasurer:
    """Local counts while they hold, else what the operator set for it.

    Token ids need no tokenizer and opaque prompts have none: they stay with the local one.
    """

    def __init__(self, local: Measurer, engine: Measurer, calibrator: Calibrator) -> None:
        self._local = local
        self._engine = engine
        self._calibrator = calibrator
        self._refusing = _Refusing()

    async def measure(self, request: ParsedRequest, limit: int | None, tenant: str) -> PromptLength:
        """As the measurer whose turn it is."""
        return await self._now(request).measure(request, limit, tenant)

    async def exact(self, request: ParsedRequest, tenant: str) -> PromptLength:
        """As the measurer whose turn it is."""
        return await self._now(request).exact(request, tenant)

    def _now(self, request: ParsedRequest) -> Measurer:
        if isinstance(request.prompt, TokenIdPrompt | OpaquePrompt):
            return self._local
        match self._calibrator.consequence:
            case OnDifference.ENGINE:
                return self._engine
            case OnDifference.REFUSE:
                return self._refusing
        return self._local


class CalibratedCounters:
    """Local counters with the offset a calibration has learnt, where it has."""

    def __init__(self, counters: LocalCounters, calibrator: Calibrator) -> None:
        self._counters = counters
        self._calibrator = calibrator

    @property
    def description(self) -> Mapping[str, object]:
        """What counts, for operators."""
        return self._counters.description

    def loaded(self, engine: str) -> LocalCounter | None:
        """The counter for an engine, if it is ready."""
        counter = self._counters.loaded(engine)
        return None if counter is None else self._corrected(counter)

    def load(self, engine: str) -> LocalCounter:
        """The counter for an engine, made ready where it was not."""
        return self._corrected(self._counters.load(engine))

    def _corrected(self, counter: LocalCounter) -> LocalCounter:
        offset = self._calibrator.found.offset
        return _Shifted(counter, offset) if offset else counter


class _Shifted:
    """A counter whose chats are longer by ``offset`` tokens."""

    def __init__(self, counter: LocalCounter, offset: int) -> None:
        self._counter = counter
        self._offset = offset

    def glance(self, prompt: Prompt) -> Bounded | None:
        """The bound and the offset."""
        bound = self._counter.glance(prompt)
        if bound is None or not isinstance(prompt, ChatPrompt):
            return bound
        return Bounded(bound.longest + self._offset, bound.total + self._offset)

    def measure(self, prompt: Prompt, limit: int | None, means: Means = FREELY) -> PromptLength:
        """Against a limit that leaves room for the offset."""
        if not isinstance(prompt, ChatPrompt):
            return self._counter.measure(prompt, limit, means)
        length = self._counter.measure(prompt, self._less(limit), means)
        return calibration.shifted(length, self._offset)

    def count(
        self, prompt: Prompt, stop_at: int | None = None, means: Means = FREELY
    ) -> PromptLength:
        """The count and the offset."""
        if not isinstance(prompt, ChatPrompt):
            return self._counter.count(prompt, stop_at, means)
        length = self._counter.count(prompt, self._less(stop_at), means)
        return calibration.shifted(length, self._offset)

    def _less(self, limit: int | None) -> int | None:
        return None if limit is None else max(0, limit - self._offset)


class _Refusing:
    """No count at all while counts differ."""

    async def measure(
        self,
        request: ParsedRequest,  # noqa: ARG002
        limit: int | None,  # noqa: ARG002
        tenant: str,  # noqa: ARG002
    ) -> PromptLength:
        """Never a count."""
        return Unverifiable(COUNTS_DIFFER, transient=True)

    async def exact(self, request: ParsedRequest, tenant: str) -> PromptLength:
        """Never a count."""
        return await self.measure(request, None, tenant)


def _pair(sample: Sample, ours: Counted, theirs: int | None) -> Pair:
    return Pair(sample.name, sample.is_chat, ours.total, theirs)
