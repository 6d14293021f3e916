"""The checks of one answer, at the moments they can act: before its first byte, as soon as it
tells its id, and at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from gateway.core import attestation, binding, completeness, latency, sentinel_check, spotcheck
from gateway.core.neighbours import Run
from gateway.core.quarantine import State
from gateway.dialects import prompts
from gateway.dialects.base import AnswerReader
from gateway.edge.actions import Actions
from gateway.edge.backends import Backend
from gateway.edge.exchange import Exchange
from gateway.edge.sentinels import Hearing
from gateway.edge.shadow import Shadow
from gateway.edge.watch import Watch
from gateway.types import (
    Action,
    Bounded,
    CheckResult,
    Counted,
    Ending,
    Evidence,
    Finding,
    Observation,
    ParsedRequest,
    PromptLength,
    TextPrompt,
    Verdict,
)

TELLING = 3  # events of a stream: two of them tell its id, where ids are told again


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """What the operator wants checked, and what a finding does. None: the check is off.

    ``sample`` is the share of answers whose usage is compared, 0 to 1.
    """

    prompt_tokens: Action = Action.FLAG
    latency: Action | None = Action.BLOCK
    binding: Action | None = Action.BLOCK
    completeness: Action = Action.BLOCK
    cached_tokens: Action = Action.FLAG
    sample: float = 1.0

    @property
    def may_withhold_end(self) -> bool:
        """Whether a check that needs the whole answer can withhold it, or a stream's end."""
        at_end = (self.prompt_tokens, self.completeness, self.cached_tokens)
        return any(action is not Action.FLAG for action in at_end)


class Inspection:
    """Judges one answer. Withholding raises ``Rejection`` (WITHHELD) with the incident's id."""

    def __init__(
        self,
        request: ParsedRequest,
        backend: Backend,
        exchange: Exchange,
        policy: CheckPolicy,
        actions: Actions,
        shadow: Shadow,
        run: Run,
        *,
        hearing: Hearing | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._request = request
        self._backend = backend
        self._exchange = exchange
        self._policy = policy
        self._may_withhold_end = policy.may_withhold_end
        self._actions = actions
        self._shadow = shadow
        self._run = run
        self._note_count()
        self.hearing = hearing
        self._watch = watch
        self._new_share = 1.0  # of the prompt's bytes: what no earlier prompt began with
        # The id is random, so a slice of it decides alike on every replica and in the record.
        self._sampled = int(exchange.request_id[-8:], 16) < policy.sample * 2**32
        self._id: str | None = None  # the answer's, as told last
        self._one_id = True
        self._binding: CheckResult | None = None
        self._refused = False

    def found(self, finding: Finding, *, withhold: bool = True) -> None:
        """The one way a finding takes effect: noted, acted upon as it asks.

        ``withhold`` is False where nothing of the answer is left to withhold.
        """
        self._exchange.checks.append(finding.result)
        self._actions.take(finding, self._exchange, self._backend, able=withhold)

    def _judged(
        self, result: CheckResult, evidence: Evidence, action: Action, *, withhold: bool
    ) -> None:
        """Note a result; only a suspect one asks for more."""
        if result.suspect:
            self.found(Finding(result, evidence, action), withhold=withhold)
        else:
            self._exchange.checks.append(result)

    # --- before anything is released ----------------------------------------------------------

    async def first_byte(self, ttft: float) -> None:
        """Physics, before anything is released."""
        self._exchange.ttft = ttft
        if self._policy.latency is None or not self._request.generates:
            return
        result = latency.judge_ttft(self._backend.prefill, await self._uncached_tokens(), ttft)
        self._judged(result, Evidence.STRONG, self._policy.latency, withhold=True)

    def identified(self, ids: Sequence[str]) -> None:
        """The answer's id, before the event that tells it, or another one, is released."""
        for response_id in ids:
            self._judge_binding(response_id)

    def failed(self, status: int, failure: bytes) -> None:
        """What the engine says of its failure (``AnswerReader.failure``) may be its limit."""
        if failure and not self._refused:
            self._refused = True
            self._backend.refused(status, failure)

    @property
    def watches(self) -> bool:
        """Whether ``hear_events`` and ``hear_body`` look for anything."""
        return self._watch is not None

    @property
    def alarmed(self) -> bool:
        """Whether ``hear`` must be asked before anything more is released."""
        return self.hearing is not None and self.hearing.alarmed

    async def hear(self) -> bytes:
        """Judge the sentinels just found; what may be released now, where none withholds it."""
        if self.hearing is None:
            return b""
        for finding in await self.hearing.findings():
            self.found(finding)
        return await self.hearing.settle()

    # --- at the end ---------------------------------------------------------------------------

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
        """Whether a stream that has just ended must wait for the judgement of its end."""
        return self._may_withhold_end and reader.complete

    async def at_end(self, seen: Observation) -> None:
        """All of the answer is here and its end, at least, not released."""
        if self._binding is None:
            self._judge_binding(seen.response_id)
        self._conclude_binding(seen)
        result = completeness.judge_completeness(self._request, seen)
        self._judged(result, Evidence.WEAK, self._policy.completeness, withhold=True)
        if self._policy.prompt_tokens is not Action.FLAG:
            await self._judge_usage(seen, withhold=True)
        if self._policy.cached_tokens is not Action.FLAG:
            await self._judge_cached(seen, withhold=True)

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
        self._conclude_binding(seen)
        self._note_uncached()
        judged = {check.check for check in self._exchange.checks}
        if spotcheck.CHECK not in judged:
            await self._judge_usage(seen, withhold=False)
        if attestation.CHECK not in judged:
            await self._judge_cached(seen, withhold=False)
        if self.hearing is not None and sentinel_check.CHECK not in judged:
            self._exchange.checks.append(await self.hearing.verdict())
        await self._conclude_watch(seen)
        self._learn(seen)

    async def _conclude_watch(self, seen: Observation) -> None:
        told = await self._watch.conclude(seen) if self._watch is not None else None
        if isinstance(told, Finding):
            self.found(told, withhold=False)
        elif told is not None:
            self._exchange.checks.append(told)

    # --- the checks ---------------------------------------------------------------------------

    def _judge_binding(self, response_id: str | None) -> None:
        """At each id told. One sequence asked for: several have ids of their own on SGLang."""
        past, kind = self._backend.past, self._request.dialect
        if self._policy.binding is None or (self._binding is not None and self._binding.suspect):
            return
        single = completeness.answers(self._request) == 1
        changed = bool(self._id) and self._id != response_id
        self._one_id = self._one_id and single and not changed
        self._id = response_id
        self._binding = result = binding.judge_binding(
            self._exchange.request_id,
            response_id,
            expected=single and kind in past.echoes,
            changed=single and changed and kind in past.steady,
        )
        if result.verdict is Verdict.OK and single:
            past.echoes.add(kind)
        if result.suspect:
            certain = result.reason == binding.ANOTHER
            evidence = Evidence.CERTAIN if certain else Evidence.STRONG
            self.found(Finding(result, evidence, self._policy.binding))

    def _conclude_binding(self, seen: Observation) -> None:
        """Note what is no finding, once; and that a whole stream kept to one id."""
        result, checks = self._binding, self._exchange.checks
        if result is None or result.suspect or result in checks:
            return
        checks.append(result)
        if self._id and self._one_id and seen.ending is Ending.COMPLETE and seen.events >= TELLING:
            self._backend.past.steady.add(self._request.dialect)

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
                engine_limit=self._engine_limit(seen),
                anothers=partial(self._backend.neighbours.has, run=self._run),
                agreed=self._backend.past.agreed,
            )
            self._note_agreement(result)
        self._judged(result, Evidence.STRONG, self._policy.prompt_tokens, withhold=withhold)

    def _note_agreement(self, result: CheckResult) -> None:
        past = self._backend.past
        if result.verdict is Verdict.OK:
            past.agreed += 1
        elif result.verdict is Verdict.MISMATCH and result.reason != spotcheck.ANOTHERS:
            past.agreed = 0

    def _note_count(self) -> None:
        length = self._exchange.length
        self._run.count = length.total if isinstance(length, Counted) else None

    def _engine_limit(self, seen: Observation) -> int | None:
        """Of one prompt that an answer was generated from, and not a batch's sum."""
        single = prompts.items(self._request.prompt) == 1 and self._request.generates
        told = seen.usage is not None and seen.usage.prompt_tokens is not None
        return self._backend.stated(self._request.model) if single and told else None

    async def _judge_cached(self, seen: Observation, *, withhold: bool) -> None:
        """Cached tokens against what this tenant ever sent, where that can be known."""
        past = self._shadow.past
        if past is None or not past.attests or seen.ending is not Ending.COMPLETE:
            return
        unseen = (await past.result()).unseen
        length = await self._length()
        if completeness.answers(self._request) > 1:  # SGLang prefills the prompt once beforehand
            result = CheckResult(attestation.CHECK, Verdict.UNVERIFIABLE, "several_choices")
        elif unseen is None or not isinstance(length, Counted):
            reason = "not_told" if unseen is None else "not_counted"
            result = CheckResult(attestation.CHECK, Verdict.UNVERIFIABLE, reason)
        else:
            told = attestation.report(length.total, seen.usage, unseen)
            result = told if isinstance(told, CheckResult) else await self._attest(told)
        action = self._policy.cached_tokens
        self._judged(result, Evidence.CERTAIN, action, withhold=withhold)

    async def _attest(self, told: attestation.Report) -> CheckResult:
        past, tokens = self._backend.past, 0
        if not attestation.fits_by_bytes(told):
            asked = replace(self._request, prompt=TextPrompt(told.unseen, False))
            counted = await self._backend.measurer.exact(asked, self._exchange.tenant)
            if not isinstance(counted, Counted):
                return CheckResult(attestation.CHECK, Verdict.UNVERIFIABLE, "not_counted")
            tokens = counted.total
        result = attestation.judge_cached(told, tokens, proved=past.proofs)
        if result.verdict is Verdict.OK and told.telling:
            past.proofs += 1
        return result

    async def _length(self) -> PromptLength:
        bound = self._exchange.length
        if self._shadow.count is not None and isinstance(bound, Bounded):
            counted = await self._shadow.count.result()
            self._shadow = replace(self._shadow, count=None)
            result = spotcheck.judge_bound(bound, counted)
            if isinstance(counted, Counted):  # else the bound is still the best there is
                self._exchange.length = counted
                self._note_count()
            self._judged(result, Evidence.WEAK, Action.FLAG, withhold=False)
        assert self._exchange.length is not None  # noqa: S101 - admission ran first
        return self._exchange.length

    async def _uncached_tokens(self) -> int | None:
        """Our count less what this tenant's earlier prompts may have left in the cache.

        The shared share is taken by bytes of the prompt's JSON, an estimate; the check's margin
        of two covers the difference in bytes a token between the two parts. A bound stands for
        the count where even that is too short to judge.
        """
        if self._shadow.past is not None and self._shadow.past.compares:
            self._new_share = (await self._shadow.past.result()).new_share
        length = self._exchange.length
        if isinstance(length, Bounded) and length.total >= self._backend.prefill.min_tokens:
            length = await self._length()
            if isinstance(length, Bounded):  # with media it may be far above the count
                return None
        self._note_uncached()
        if isinstance(length, Counted | Bounded):
            return int(length.total * self._new_share)
        return None

    def _note_uncached(self) -> None:
        length = self._exchange.length
        if isinstance(length, Counted):
            self._exchange.uncached = int(length.total * self._new_share)

    def _learn(self, seen: Observation) -> None:
        """Speeds are learnt from complete, unsuspicious streams: only there TTFT is prefill.

        Nothing is learnt from a backend under suspicion: a fault that passes for speed would
        raise the ceiling it is measured by.
        """
        exchange = self._exchange
        if (
            exchange.stream
            and exchange.ttft is not None
            and exchange.uncached is not None
            and seen.ending is Ending.COMPLETE
            and not any(check.suspect for check in exchange.checks)
            and self._backend.standing.state is State.SERVING
        ):
            self._backend.prefill = self._backend.prefill.learned(exchange.uncached, exchange.ttft)
