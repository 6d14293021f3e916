"""What a sentinel in an answer means: one verdict an answer, one finding a foreign sentinel."""

from __future__ import annotations

from gateway.core.sentinel import WORDS, Partial, Sighting
from gateway.types import (
    Action,
    ChatPrompt,
    CheckResult,
    Evidence,
    Finding,
    ParsedRequest,
    TextPrompt,
    Verdict,
)

CHECK = "sentinel"
FOREIGN = "foreign"
UNCONFIRMED = "unconfirmed"


def judge_sentinel(
    sighting: Sighting, owner: str | None, place: int, action: Action, *, confirmed: bool
) -> Finding:
    """A foreign sentinel in date that the request's own prompt does not hold.

    ``place`` is the character of its channel where it begins. ``confirmed``: all of the prompt
    could be read, so that it is certain not to hold it. Forgeable all the same: whoever learnt
    another's sentinel can hand it over in a form only the model can read.
    """
    reason = FOREIGN if confirmed else UNCONFIRMED
    return Finding(
        CheckResult(CHECK, Verdict.LEAK, reason, 0, WORDS, suspect=True),
        Evidence.CERTAIN if confirmed else Evidence.STRONG,
        action,
        forgeable=True,
        source=owner,
        numbers={"epoch": sighting.epoch, "place": place},
    )


def judge_rest(gap: str | None, partial: Partial | None) -> CheckResult:
    """The verdict where no whole foreign sentinel was found; ``gap``: why not all was scanned."""
    if partial is not None:
        return CheckResult(CHECK, Verdict.MISMATCH, "partial", 0, partial.words)
    if gap is not None:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, gap)
    return CheckResult(CHECK, Verdict.OK)


def readable(request: ParsedRequest, *, shows_media: bool) -> bool:
    """Whether the whole prompt is text that can be searched for a sentinel."""
    return isinstance(request.prompt, ChatPrompt | TextPrompt) and not shows_media
