"""What a request is charged: before it runs what it may need, afterwards what it used.

The rule, for customers: an answer is charged as the engine reports it. What a client breaks off is
charged its prompt and the output so far. What poolgate or the engine failed to deliver is free, and
a stream that broke after output had gone out is charged as if the client had broken it off.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from gateway.dialects import prompts
from gateway.limits.base import Used
from gateway.limits.policy import Demand
from gateway.settings import Policy
from gateway.types import (
    AtLeast,
    Bounded,
    Counted,
    Ending,
    Observation,
    ParsedRequest,
    PromptLength,
    Unverifiable,
)

BYTES_PER_TOKEN = 4  # of an answer, where it shows neither usage nor events; tokens are shorter


class Ended(Struct, frozen=True):
    """How a request ended.

    ``seen`` is None where no answer began. ``sent``: it went to the engine. ``refused``: an error
    of ours took the answer's place. ``bytes_out`` of the answer went to the client.
    """

    seen: Observation | None
    status: int
    bytes_out: int
    sent: bool
    refused: bool
    client_gone: bool


def demand(parsed: ParsedRequest, length: PromptLength | None, policy: Policy) -> Demand:
    """The prompt once, and the output that each answer may have.

    Where the request sets no maximum, ``reserve_output_tokens`` is assumed.
    """
    prompt = prompt_tokens(parsed, length)
    sure_prompt = prompt if isinstance(length, Counted | AtLeast) else 0
    answers = _answers(parsed)
    if parsed.max_output_tokens is not None:
        output = sure_output = parsed.max_output_tokens * answers
    else:
        output, sure_output = policy.reserve_output_tokens * answers, 0
    return Demand(Used(sure_prompt, sure_output), Used(prompt, output))


def prompt_tokens(parsed: ParsedRequest, length: PromptLength | None) -> int:
    """A count, else its bound. What was let through uncounted has no more tokens than bytes."""
    match length:
        case Counted() | Bounded():
            return length.total
        case AtLeast(longest):
            return longest
        case Unverifiable() | None:
            return len(parsed.raw)


def charge(
    parsed: ParsedRequest, length: PromptLength | None, policy: Policy, ended: Ended
) -> Used | None:
    """What the request used, or None where everything reserved is to be given back."""
    if _free(ended):
        return None
    seen = ended.seen or Observation()
    usage = seen.usage
    told_prompt = usage.prompt_tokens if usage else None
    prompt = prompt_tokens(parsed, length) if told_prompt is None else told_prompt
    cached = min(prompt, (usage.cached_tokens or 0) if usage else 0)
    # Rounded first: 0.1 * 30 is 3.0000000000000004.
    weighted = ceil(round(cached * policy.cached_token_weight, 6))
    return Used(prompt - cached + weighted, _output(parsed, seen))


def _free(ended: Ended) -> bool:
    seen = ended.seen
    if ended.client_gone:
        return not ended.sent or (seen is not None and _is_error(seen))
    if ended.refused or seen is None:
        return True
    if seen.usage is not None:
        return False
    cut_unseen = seen.ending is Ending.TRUNCATED and not ended.bytes_out
    return ended.status >= 400 or cut_unseen or _is_error(seen)


def _is_error(seen: Observation) -> bool:
    """Whether the engine answered with an error alone. An answer that began has told its id."""
    return seen.ending is Ending.UPSTREAM_ERROR and seen.response_id is None


def _output(parsed: ParsedRequest, seen: Observation) -> int:
    """The engine's count of a whole answer; of one without it, or cut short, our own.

    A stream's events are about its tokens. What an engine told in mid-stream may be older than
    the last event.
    """
    told = seen.usage.completion_tokens if seen.usage else None
    if told is not None and seen.ending is Ending.COMPLETE:
        return told
    if not parsed.generates:
        return told or 0
    if told is not None or seen.events:
        return max(told or 0, seen.events)
    counted = ceil(seen.bytes_in / BYTES_PER_TOKEN)
    most = parsed.max_output_tokens
    return counted if most is None else min(counted, most * _answers(parsed))


def _answers(parsed: ParsedRequest) -> int:
    """How many answers the engine generates: each prompt of a batch has its own choices."""
    return parsed.choices * prompts.items(parsed.prompt) if parsed.generates else 0
