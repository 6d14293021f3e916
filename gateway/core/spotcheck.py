"""Does the engine's own count agree with ours? One verdict an answer.

The comparison catches truncation, a wrong template or tokenizer, a response joined to the wrong
request, and a prompt replaced by a stub. It does not catch the incident's decode leg, which
reports the right number (research: sglang #30233); latency and text checks are for that.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from gateway.types import (
    AtLeast,
    Bounded,
    CheckResult,
    Counted,
    PromptLength,
    Unverifiable,
    Usage,
    Verdict,
)

CHECK = "prompt_tokens"
BOUND = "bound"
# A returned count under half of ours is no drift of a template: something else was computed.
SUSPECT_SHARE = 0.5
# Counts that agreed in a row, before one that does not is looked for among others' prompts.
AGREED = 16
ANOTHERS = "anothers"


def judge_prompt_tokens(
    ours: PromptLength,
    usage: Usage | None,
    *,
    first_only: bool = False,
    doubt: str | None = None,
    engine_limit: int | None = None,
    anothers: Callable[[int], bool] | None = None,
    agreed: int = 0,
) -> CheckResult:
    """Compare ``usage.prompt_tokens`` with our count.

    ``first_only``: this engine's usage covers only the first prompt of a batch (llama.cpp).
    ``engine_limit``: the longest single prompt the engine itself says it accepts. One it answered
    although by its own count it is longer is what leaked in the incident; only prompts that were
    let through uncounted can come to that.
    ``doubt``: why our count is not claimed to be exact; a difference then proves nothing, unless
    it is a suspect one.
    ``anothers``: whether a prompt of so many tokens was at the engine meanwhile. That the answer is
    its answer is believed only of an engine whose counts ``agreed`` with ours so often in a row.
    """
    returned = usage.prompt_tokens if usage else None
    if engine_limit is not None and returned is not None and returned > engine_limit:
        return CheckResult(CHECK, Verdict.MISMATCH, "over_limit", engine_limit, returned, True)
    result = _judge(ours, usage, first_only=first_only)
    if (
        result.reason in {"differs", "under_half"}
        and doubt is None
        and agreed >= AGREED
        and returned is not None
        and anothers is not None
        and anothers(returned)
    ):
        return replace(result, reason=ANOTHERS, suspect=True)
    if doubt is None or result.suspect or result.verdict is not Verdict.MISMATCH:
        return result
    return replace(result, verdict=Verdict.UNVERIFIABLE, reason=doubt)


def _judge(ours: PromptLength, usage: Usage | None, *, first_only: bool) -> CheckResult:
    returned = usage.prompt_tokens if usage else None
    if returned is None:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "no_usage")
    match ours:
        case Counted(items):
            expected = items[0] if first_only and items else ours.total
            return _compare(expected, returned)
        case Bounded():
            return _within(ours.total, returned)
        case AtLeast(longest):
            # Only reachable where an over-long prompt was let through on purpose.
            if returned < longest * SUSPECT_SHARE:
                return CheckResult(CHECK, Verdict.MISMATCH, "under_half", longest, returned, True)
            return CheckResult(CHECK, Verdict.UNVERIFIABLE, "not_counted", longest, returned)
        case Unverifiable(reason):
            return CheckResult(CHECK, Verdict.UNVERIFIABLE, reason, None, returned)


def judge_bound(bound: Bounded, counted: PromptLength) -> CheckResult:
    """Did the bound by which a prompt was admitted hold? A false proof must not stay unseen."""
    if not isinstance(counted, Counted):
        return CheckResult(BOUND, Verdict.UNVERIFIABLE, "not_counted", bound.longest)
    if counted.longest > bound.longest or counted.total > bound.total:
        return CheckResult(
            BOUND, Verdict.MISMATCH, "below_count", bound.longest, counted.longest, True
        )
    return CheckResult(BOUND, Verdict.OK, "", bound.longest, counted.longest)


def _compare(expected: int, returned: int) -> CheckResult:
    if returned == expected:
        return CheckResult(CHECK, Verdict.OK, "", expected, returned)
    suspect = returned < expected * SUSPECT_SHARE
    reason = "under_half" if suspect else "differs"
    return CheckResult(CHECK, Verdict.MISMATCH, reason, expected, returned, suspect)


def _within(bound: int, returned: int) -> CheckResult:
    if returned > bound:
        return CheckResult(CHECK, Verdict.MISMATCH, "above_bound", bound, returned)
    return CheckResult(CHECK, Verdict.UNVERIFIABLE, "only_bounded", bound, returned)
