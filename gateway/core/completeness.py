"""Is an answer that calls itself a success one? Empty, endless and impossible ones are not.

A finding here is either *impossible* (``suspect``: no engine may legitimately do it) or *doubtful*
(there are innocent reasons; it is counted, and nothing more). What looks empty and is an answer:

- content that is empty, with a finish reason: an end at once, a maximum of 0 tokens, a prompt that
  was only scored (``echo``, ``logprobs``), a maximum spent on reasoning;
- tool calls and reasoning without content;
- a response (/v1/responses has no finish reason) that was completed without output: an end at
  once is one too, but a token was generated for it;
- fewer choices than ``best_of``: only ``n`` of them are returned;
- embeddings and counts, which generate nothing and are not judged.

The figures allow for engines as recorded: llama.cpp's usage covers the first choice only, and a
maximum of 0 yields one token in some.
"""

from __future__ import annotations

from gateway.dialects import prompts
from gateway.types import CheckResult, Ending, Observation, ParsedRequest, Usage, Verdict

CHECK = "completeness"
COMPLETED = "completed"  # the status of a response, where no reason is given beside it
SPARE_TOKENS = 1  # an answer may have over its maximum: some engines sample before they look


def judge_completeness(request: ParsedRequest, seen: Observation) -> CheckResult:
    """Whether a 200 is a whole and possible answer to ``request``."""
    if not request.generates:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "not_generated")
    if not seen.scanned:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "not_scanned")
    if seen.ending is Ending.TRUNCATED and seen.events == 0:
        # Of a whole answer: no JSON, or no body at all. A stream without its end is cut visibly.
        return _impossible("empty" if seen.bytes_in == 0 else "unreadable")
    if seen.ending is not Ending.COMPLETE:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, str(seen.ending))
    if not seen.finish_reasons or _is_empty_response(request, seen):
        return _impossible("no_finish" if seen.spoke else "empty")
    found = _usage(request, seen, seen.usage) if seen.usage else None
    if found is None and "abort" in seen.finish_reasons:
        found = _doubtful("aborted")
    return found or CheckResult(CHECK, Verdict.OK)


def _is_empty_response(request: ParsedRequest, seen: Observation) -> bool:
    if COMPLETED not in seen.finish_reasons or seen.spoke or request.max_output_tokens == 0:
        return False
    return seen.usage is None or not seen.usage.completion_tokens


def _usage(request: ParsedRequest, seen: Observation, usage: Usage) -> CheckResult | None:
    """Numbers that no answer can have."""
    prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    if prompt == 0:
        return _impossible("no_prompt", 1, 0)
    single = answers(request) == 1
    if prompt is not None and cached is not None and cached > prompt:
        # Choices of one prompt share pages, and not every engine counts them once.
        return (_impossible if single else _doubtful)("cached_over_prompt", prompt, cached)
    if completion is None:
        return None
    most = request.max_output_tokens
    if most is not None and completion > most * answers(request):
        over = completion > (most + SPARE_TOKENS) * answers(request)
        # Built-in tools of /v1/responses make one answer of several rounds.
        told = _impossible if over and not request.body.get("tools") else _doubtful
        return told("over_max_tokens", most * answers(request), completion)
    if completion == 0 and most != 0:  # even an end at once is a token
        return _doubtful("text_without_tokens" if seen.spoke else "no_tokens", 1, 0)
    return None


def answers(request: ParsedRequest) -> int:
    """How many sequences the request asks for: its prompts times its choices."""
    return prompts.items(request.prompt) * request.choices


def _impossible(
    reason: str, expected: int | None = None, returned: int | None = None
) -> CheckResult:
    return CheckResult(CHECK, Verdict.MISMATCH, reason, expected, returned, True)


def _doubtful(reason: str, expected: int | None = None, returned: int | None = None) -> CheckResult:
    return CheckResult(CHECK, Verdict.MISMATCH, reason, expected, returned)
