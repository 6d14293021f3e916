"""The deploy gate's judgement: may this engine, as it runs now, take traffic?

It holds the incident's checklist against what the live workers say of themselves: pool against
context with headroom, silent truncation, versions known to leak, both legs of a disaggregated
engine, the checksum on KV transfers. What is not exposed fails closed, with an outcome of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from math import ceil

from gateway.core.capacity import Snapshot
from gateway.engines import known_bad
from gateway.types import Books, Role, WorkerFacts

Legs = Mapping[Role, Books]  # of prefill and of decode

# Tokens of the context an engine may keep for itself: SGLang keeps 7, vLLM and llama.cpp 1.
RESERVE = 64


class Exit(IntEnum):
    """Exit codes of the contract."""

    PASS = 0
    FAIL = 1
    NOT_EXPOSED = 3


class Level(StrEnum):
    """How a finding counts: ``advice`` is for people and never blocks."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    NOT_EXPOSED = "not exposed"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one worker, with its numbers in the text."""

    check: str
    worker: str
    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """All findings. ``context`` is what the pools were held against, tokens."""

    findings: tuple[Finding, ...]
    context: int | None
    headroom: float

    @property
    def exit(self) -> Exit:
        """A failure weighs more than what is not exposed: it is certain."""
        levels = {finding.level for finding in self.findings}
        if Level.FAIL in levels:
            return Exit.FAIL
        if Level.NOT_EXPOSED in levels or Level.PASS not in levels:
            return Exit.NOT_EXPOSED
        return Exit.PASS


def evaluate(
    snapshot: Snapshot, *, context: int | None, headroom: float, transfer: Finding | None = None
) -> Report:
    """Judge every worker of a backend.

    ``context`` is the length promised to users; None takes the largest any worker advertises.
    ``transfer``: what ``transfer_finding`` made of both legs' counts.
    """
    advertised = [
        fact.context_tokens
        for seen in snapshot.workers.values()
        for fact in seen.facts
        if fact.context_tokens is not None
    ]
    held = context if context is not None else max(advertised, default=None)
    findings: list[Finding] = []
    for name, seen in snapshot.workers.items():
        if seen.trouble is not None or not seen.facts:
            reason = seen.trouble or "it states nothing"
            findings.append(Finding("limit", name, Level.NOT_EXPOSED, reason))
        for fact in seen.facts:
            findings.extend(_judge(fact, held, headroom))
    if not snapshot.workers:
        findings.append(Finding("limit", "-", Level.NOT_EXPOSED, "no worker answers"))
    findings.extend(_legs(snapshot))
    if transfer is not None:
        findings.append(transfer)
    return Report(tuple(findings), held, headroom)


def disaggregated(snapshot: Snapshot) -> bool:
    """Whether any worker is one leg of a prefill/decode engine."""
    return any(fact.disaggregated for seen in snapshot.workers.values() for fact in seen.facts)


def transfer_finding(now: Legs | None, before: Legs | None = None, slack: int = 0) -> Finding:
    """Whether decode answered for more prompt tokens than prefill had sent it.

    A sound engine's decode is behind prefill, never ahead. Without ``before`` all that the
    processes ever counted is compared. With it, what they counted since: then what was in flight
    at that time may be counted by decode alone, at most ``slack`` tokens (the decode pools).
    ``now`` is None where not both legs show their counts.
    """
    if now is None:
        text = "not exposed: prefill and decode do not both show the prompt tokens they counted"
        return Finding("transfer", "-", Level.ADVICE, text)
    prefill, decode = (_since(now, before, role) for role in (Role.PREFILL, Role.DECODE))
    numbers = (
        f"prefill computed {prefill.prompt_tokens} prompt tokens of {prefill.requests} requests, "
        f"decode answered for {decode.prompt_tokens} of {decode.requests}"
    )
    if before is None and prefill.requests < decode.requests:
        text = f"not comparable, prefill began later or is not all seen: {numbers}"
        return Finding("transfer", "-", Level.ADVICE, text)
    missing = decode.prompt_tokens - prefill.prompt_tokens
    if missing > slack:
        text = f"{missing} prompt tokens were never sent: {numbers}"
        return Finding("transfer", "-", Level.FAIL, text)
    failed = sum(leg.failed or 0 for leg in (prefill, decode))
    told = f"{numbers}; {failed} transfers failed" if failed else numbers
    return Finding("transfer", "-", Level.PASS, told)


def continues(before: Legs, now: Legs) -> bool:
    """Whether ``now`` can be later counts of the same processes: none has fallen."""
    return all(
        now[role].prompt_tokens >= leg.prompt_tokens and now[role].requests >= leg.requests
        for role, leg in before.items()
    )


def _since(now: Legs, before: Legs | None, role: Role) -> Books:
    if before is None:
        return now[role]
    leg, then = now[role], before[role]
    failed = None if leg.failed is None else leg.failed - (then.failed or 0)
    return Books(leg.requests - then.requests, leg.prompt_tokens - then.prompt_tokens, failed)


def _judge(fact: WorkerFacts, context: int | None, headroom: float) -> Iterator[Finding]:
    worker = f"{fact.worker} ({fact.role})"
    yield _pool(fact, worker, context, headroom)
    yield _limit(fact, worker, context)
    if fact.truncates:
        yield Finding(
            "truncation", worker, Level.FAIL, f"cuts long prompts in silence: {fact.truncates}"
        )
    else:
        yield Finding("truncation", worker, Level.PASS, "refuses over-long prompts itself")
    for text in known_bad.known_bad(fact):
        yield Finding("version", worker, Level.FAIL, text)
    for text in known_bad.advisories(fact):
        yield Finding("version", worker, Level.ADVICE, text)
    for note in fact.notes:
        yield Finding("note", worker, Level.ADVICE, note)
    if context is not None and fact.context_tokens is not None and fact.context_tokens > context:
        yield Finding(
            "context",
            worker,
            Level.ADVICE,
            f"advertises {fact.context_tokens} tokens, more than the {context} it is held against:"
            " longer prompts must be refused in front of it",
        )
    if fact.disaggregated and fact.kv_checksum is not True:
        cure = "start it with" if fact.kv_checksum is False else "update to a version that has"
        yield Finding(
            "kv_checksum",
            worker,
            Level.ADVICE,
            f"KV transfers are not verified: {cure} --disaggregation-enable-kv-checksum",
        )


def _legs(snapshot: Snapshot) -> Iterator[Finding]:
    """Both pools of a disaggregated engine must be seen: either one can be the small one."""
    if not disaggregated(snapshot):
        return
    seen_roles = {fact.role for seen in snapshot.workers.values() for fact in seen.facts}
    missing = [role for role in (Role.PREFILL, Role.DECODE) if role not in seen_roles]
    if missing:
        text = f"no {' or '.join(missing)} worker is seen: name it with --worker"
        yield Finding("legs", "-", Level.NOT_EXPOSED, text)
    else:
        yield Finding("legs", "-", Level.PASS, "prefill and decode workers are seen")


def _pool(fact: WorkerFacts, worker: str, context: int | None, headroom: float) -> Finding:
    if fact.pool_tokens is None or context is None:
        missing = "KV pool" if fact.pool_tokens is None else "context"
        return Finding("pool", worker, Level.NOT_EXPOSED, f"its {missing} is not exposed")
    needed = ceil(context * headroom)
    numbers = (
        f"pool {fact.pool_tokens} tokens, context {context}, needs {needed} (headroom {headroom:g})"
    )
    return Finding(
        "pool", worker, Level.PASS if fact.pool_tokens >= needed else Level.FAIL, numbers
    )


def _limit(fact: WorkerFacts, worker: str, context: int | None) -> Finding:
    longest = fact.max_prompt_tokens
    if longest is None:
        return Finding("limit", worker, Level.NOT_EXPOSED, "its longest prompt is not exposed")
    if context is not None and longest < context - RESERVE:
        text = f"accepts prompts up to {longest} tokens of the {context} it should take"
        return Finding("limit", worker, Level.FAIL, text)
    return Finding("limit", worker, Level.PASS, f"accepts prompts up to {longest} tokens")
