"""The checks of one answer, at the two moments they can act: before its first byte, at its end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.core import latency, spotcheck
from gateway.dialects.base import AnswerReader
from gateway.edge.backends import Backend
from gateway.edge.exchange import Exchange
from gateway.edge.record import Recorder
from gateway.edge.shadow import Shadow
from gateway.edge.watch import Watch
from gateway.errors import Kind, Rejection
from gateway.types import (
    Action,
    Bounded,
    CheckResult,
    Counted,
    Ending,
    Finding,
    Observation,
    ParsedRequest,
    PromptLength,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """What the operator wants checked, and what a suspect finding does.

    ``block`` and ``hold`` withhold the answer; ``flag`` records it. ``sample`` is the share of
    answers whose usage is compared, 0 to 1.
    """

    block_on_usage: bool = False
    latency: str = "hold"  # off | flag | hold
    sample: float = 1.0


class Inspection:
    """Judges one answer. Withholding raises ``Rejection`` (WITHHELD) with the incident's id."""

    def __init__(
        self,
        request: ParsedRequest,
        backend: Backend,
        exchange: Exchange,
        policy: CheckPolicy,
        recorder: Recorder,
        shadow: Shadow,
        watch: Watch | None = None,
    ) -> None:
        self._request = request
        self._backend = backend
        self._exchange = exchange
        self._policy = policy
        self._recorder = recorder
        self._shadow = shadow
        self._watch = watch
        self._new_share = 1.0  # of the prompt's bytes: what no earlier prompt began with
        # The id is random, so a slice of it decides alike on every replica and in the record.
        self._sampled = int(exchange.request_id[-8:], 16) < policy.sample * 2**32

    def found(self, finding: Finding, *, withhold: bool = True) -> None:
        """The one way a finding takes effect: noted, acted upon as it asks.

        ``withhold`` is False where nothing of the answer is left to withhold.
        """
        self._exchange.checks.append(finding.result)
        self._act(finding.result, withhold=withhold and finding.action is not Action.FLAG)

    async def first_byte(self, ttft: float) -> None:
        """Physics, before anything is released."""
        self._exchange.ttft = ttft
        if self._policy.latency == "off" or not self._request.generates:
            return
        result = latency.judge_ttft(self._backend.prefill, await self._uncached_tokens(), ttft)
        self._exchange.checks.append(result)
        if result.suspect:
            self._act(result, withhold=self._policy.latency == "hold")

    async def hear_events(self, released: bytes) -> None:
        """Whole events of a stream that are about to go out."""
        if self._watch is not None:
            self._take(await self._watch.hear_events(released))

    async def hear_body(self, body: bytes) -> None:
        """A whole answer that is about to go out."""
        if self._watch is not None:
            self._take(await self._watch.hear_body(body))

    def _take(self, finding: Finding | None) -> None:
        if finding is not None:
            self.found(finding)

    def holds(self, reader: AnswerReader) -> bool:
        """Whether what a stream brought last must wait for what comes next."""
        return self.holds_end(reader) or (self._watch is not None and self._watch.holding)

    def holds_end(self, reader: AnswerReader) -> bool:
        """Whether a stream that has just ended must wait for the judgement of its usage."""
        return self._policy.block_on_usage and reader.result().ending is Ending.COMPLETE

    async def at_end(self, seen: Observation) -> None:
        """All of the answer is here and its end, at least, not released: usage may block it."""
        if self._policy.block_on_usage:
            await self._judge_usage(seen, withhold=True)

    @property
    def counting(self) -> bool:
        """Whether an exact count is still to come."""
        return self._shadow.count is not None and not self._shadow.count.done

    async def finish(self) -> None:
        """The answer is over: what was not judged yet is judged, for the record only."""
        seen = self._exchange.observation
        if seen is None:
            return
        await self._length()
        if not any(check.check == spotcheck.CHECK for check in self._exchange.checks):
            await self._judge_usage(seen, withhold=False)
        await self._conclude_watch(seen)
        self._learn(seen)

    async def _conclude_watch(self, seen: Observation) -> None:
        told = await self._watch.conclude(seen) if self._watch is not None else None
        if isinstance(told, Finding):
            self.found(told, withhold=False)
        elif told is not None:
            self._exchange.checks.append(told)

    async def _judge_usage(self, seen: Observation, *, withhold: bool) -> None:
        if not self._sampled:
            return
        if not seen.scanned or seen.ending is not Ending.COMPLETE:
            reason = str(seen.ending) if seen.scanned else "not_scanned"
            result = CheckResult(spotcheck.CHECK, Verdict.UNVERIFIABLE, reason)
        else:
            result = spotcheck.judge_prompt_tokens(
                await self._length(),
                seen.usage,
                first_only=self._backend.traits.usage_first_only,
                doubt=self._exchange.doubt,
            )
        self._exchange.checks.append(result)
        if result.suspect:
            self._act(result, withhold=withhold)

    async def _length(self) -> PromptLength:
        bound = self._exchange.length
        if self._shadow.count is not None and isinstance(bound, Bounded):
            counted = await self._shadow.count.result()
            self._shadow = replace(self._shadow, count=None)
            result = spotcheck.judge_bound(bound, counted)
            self._exchange.checks.append(result)
            if isinstance(counted, Counted):  # else the bound is still the best there is
                self._exchange.length = counted
            if result.suspect:
                self._act(result, withhold=False)
        assert self._exchange.length is not None  # noqa: S101 - admission ran first
        return self._exchange.length

    async def _uncached_tokens(self) -> int | None:
        """Our count less what this tenant's earlier prompts may have left in the cache.

        The shared share is taken by bytes of the prompt's JSON, an estimate; the check's margin
        of two covers the difference in bytes a token between the two parts. A bound stands for
        the count where even that is too short to judge.
        """
        if self._shadow.new_share is not None:
            self._new_share = await self._shadow.new_share.result()
        length = self._exchange.length
        if isinstance(length, Bounded) and length.total >= self._backend.prefill.min_tokens:
            length = await self._length()
            if isinstance(length, Bounded):  # with media it may be far above the count
                return None
        if isinstance(length, Counted | Bounded):
            return int(length.total * self._new_share)
        return None

    def _learn(self, seen: Observation) -> None:
        """Speeds are learnt from complete, unsuspicious streams: only there TTFT is prefill."""
        exchange = self._exchange
        if (
            exchange.stream
            and exchange.ttft is not None
            and isinstance(exchange.length, Counted)
            and seen.ending is Ending.COMPLETE
            and not any(check.suspect for check in exchange.checks)
        ):
            uncached = int(exchange.length.total * self._new_share)
            self._backend.prefill = self._backend.prefill.learned(uncached, exchange.ttft)

    def _act(self, finding: CheckResult, *, withhold: bool) -> None:
        """Every suspect finding is an incident; whether the answer goes out is the operator's."""
        incident = self._recorder.incident(finding.check, self._exchange, finding)
        if withhold:
            raise Rejection(
                Kind.WITHHELD,
                "The response was withheld by an integrity check. Retry.",
                incident=incident,
            )
