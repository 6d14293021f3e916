"""What a probe asks of a live engine, and what each answer means. research/detection.md 3.7.

Two tenants of our own: P1 fills the memory, then P2 asks at lengths around the stated limit. Up to
the limit an answer must hold words of its own prompt only; above it there must be no answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import ceil, sqrt

import msgspec

from gateway.core import capacity
from gateway.core.probe_text import Trace
from gateway.types import Verdict

MOST_ANSWER = 256  # tokens
OVER = 64  # tokens over the limit of the probe between limit and context
SHORTEST = 96  # tokens; a shorter prompt does not hold the question and a few words
FIRST_ABORT, LAST_ABORT = 0.015, 0.05  # seconds

_REFUSED = (400, 413, 422)
_Z = 1.959964  # of a 95% interval
_RULE_OF_THREE = 3.0


class Exit(IntEnum):
    """Exit codes of the contract."""

    CLEAN = 0
    FAULT = 1
    COULD_NOT_RUN = 3


@dataclass(frozen=True, slots=True)
class Reply:
    """An engine's answer. ``status`` 0: none came. ``too_long``: it says the prompt is.

    ``prompt_tokens`` and ``cached_tokens`` are None where usage does not tell them.
    """

    status: int
    text: str = ""
    finish: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One judged answer. ``tokens``: the prompt's length.

    ``needed``: without this check the probe has not run. ``answered``: a clean answer that could
    have leaked; only these make the bound smaller. ``taken``: a prompt over the limit that was
    answered.
    """

    check: str
    verdict: Verdict
    text: str
    tokens: int | None = None
    needed: bool = False
    answered: bool = False
    taken: bool = False

    @property
    def at_fault(self) -> bool:
        """Whether it found a leak or a wrong boundary."""
        return self.verdict in (Verdict.LEAK, Verdict.MISMATCH)

    @property
    def missing(self) -> bool:
        """Whether it had to be made and could not be."""
        return self.needed and self.verdict is Verdict.UNVERIFIABLE


@dataclass(frozen=True, slots=True)
class Detection:
    """The chance that a leak shows in an answer; ``low``, ``high`` are its 95% interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one run against one limit, in tokens."""

    checks: tuple[Check, ...]
    limit: int | None = None
    detection: Detection | None = None

    @property
    def exit(self) -> Exit:
        """A fault weighs more than what could not run: it is certain."""
        if any(check.at_fault for check in self.checks):
            return Exit.FAULT
        missing = any(check.missing for check in self.checks)
        return Exit.COULD_NOT_RUN if missing or not self.checks else Exit.CLEAN

    @property
    def clean_answers(self) -> int:
        """m: answers that could have leaked and did not."""
        return sum(check.answered for check in self.checks)

    @property
    def bound(self) -> float | None:
        """The leak rate that is excluded with 95%: 3/(m q), with q at its interval's low end.

        None where nothing is excluded: a fault was found, q is unknown, no clean answer.
        """
        if self.exit is Exit.FAULT or self.detection is None:
            return None
        return leak_bound(self.clean_answers, self.detection)

    @property
    def bound_text(self) -> str:
        """The bound in words."""
        answers = self.clean_answers
        if self.exit is Exit.FAULT:
            return "none: a fault was found"
        if self.bound is not None and self.detection is not None:
            return (
                f"under {self.bound:.2%} of answers leak (95%; 3/(m q), m = {answers},"
                f" q = {self.detection.low:.3f})"
            )
        if not answers:
            return "none: no clean answer"
        return f"3/(m q) with m = {answers} and q unknown: at best {min(1.0, 3 / answers):.2%}"


def leak_bound(answers: int, seen: Detection) -> float | None:
    """The leak rate that so many clean answers exclude with 95%; None where that is none.

    3/(m q), the rule of three, with q at its interval's low end. research/detection.md 3.7.
    """
    weight = answers * seen.low
    return min(1.0, _RULE_OF_THREE / weight) if weight else None


def detection(text: str) -> Detection:
    """``K/N`` (leaks seen of leaks planted; Wilson's interval) or a share such as ``0.4``.

    Raises ``ValueError``.
    """
    seen, slash, planted = text.partition("/")
    if slash:
        return wilson(int(seen), int(planted))
    share = float(text)
    if not 0 < share <= 1:
        raise ValueError("a share is more than 0 and at most 1")
    return Detection(share, share, share)


def wilson(seen: int, planted: int) -> Detection:
    """Wilson's 95% score interval of ``seen`` of ``planted``. Raises ``ValueError``."""
    if not 0 <= seen <= planted or not planted:
        raise ValueError("K/N needs 0 <= K <= N and N > 0")
    share, weight = seen / planted, _Z * _Z / planted
    middle = (share + weight / 2) / (1 + weight)
    half = _Z * sqrt(share * (1 - share) / planted + weight / planted / 4) / (1 + weight)
    return Detection(share, max(0.0, middle - half), min(1.0, middle + half))


def stated_limit(snapshot: capacity.Snapshot, model: str, now: float) -> int | Check:
    """The longest prompt by the workers' own word, or the check that failed over it."""
    word = capacity.capacity(snapshot, capacity.Rules(), now, model)
    if isinstance(word, capacity.Known):
        return word.tokens
    unsafe = isinstance(word, capacity.Unsafe)
    verdict = Verdict.MISMATCH if unsafe else Verdict.UNVERIFIABLE
    return Check("limit", verdict, word.reason, needed=True)


def sizes(snapshot: capacity.Snapshot) -> tuple[int | None, int | None]:
    """Tokens: the shortest context of all workers, and the largest pool; None where not told."""
    facts = [fact for seen in snapshot.workers.values() for fact in seen.facts]
    contexts = (fact.context_tokens for fact in facts if fact.context_tokens is not None)
    pools = (fact.pool_tokens for fact in facts if fact.pool_tokens is not None)
    return min(contexts, default=None), max(pools, default=None)


def lengths(
    limit: int, context: int | None, pool: int | None, *, quick: bool = False
) -> tuple[int, ...]:
    """Lengths to send, ascending: around the limit, and near the context's end.

    There twice: as late as possible, and early enough that a whole answer has room. ``quick``:
    the limit and one token over alone.
    """
    if quick:
        return (limit, limit + 1)
    wanted = {limit - 1, limit, limit + 1, limit + OVER}
    if context is not None:
        last = context - 1 if pool is None else min(context - 1, pool + 1)
        wanted.update(n for n in (last, context - MOST_ANSWER) if n > limit)
    return tuple(sorted(wanted))


def answer_room(tokens: int, context: int | None) -> int:
    """``max_tokens`` that keeps prompt and answer within the context, or the refusal would be
    about their sum.
    """
    return MOST_ANSWER if context is None else max(1, min(MOST_ANSWER, context - tokens))


def fills(limit: int, pool: int | None, *, whole_pool: bool) -> int:
    """How many prompts as long as the limit P1 sends before each of P2's.

    ``whole_pool``: as many as write every page of the pool, since free pages may be handed out
    in turn.
    """
    return ceil(pool / limit) + 1 if whole_pool and pool is not None else 1


def abort_delays(count: int) -> Iterator[float]:
    """Seconds after which P1 hangs up, spread evenly over the window."""
    for step in range(count):
        share = step / (count - 1) if count > 1 else 0.5
        yield FIRST_ABORT + share * (LAST_ABORT - FIRST_ABORT)


# --- reading ----------------------------------------------------------------------------------


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


def read_reply(status: int, body: bytes, *, too_long: bool) -> Reply:
    """A completion's answer. One that cannot be read is a 200 without text, usage or end."""
    if status != 200:
        return Reply(status, too_long=too_long)
    try:
        read = msgspec.json.decode(body, type=_Completion)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Reply(status)
    usage = read.usage or _Usage()
    details = usage.prompt_tokens_details or _Details()
    return Reply(
        status,
        "\n".join(choice.text or "" for choice in read.choices),
        next((choice.finish_reason for choice in read.choices), None),
        usage.prompt_tokens,
        details.cached_tokens,
    )


# --- judging ----------------------------------------------------------------------------------


def judge_within(check: str, tokens: int, reply: Reply, found: Sequence[Trace]) -> Check:
    """A prompt that fits by the engine's own word: a whole answer, with its own words only."""
    if reply.status == 200:
        verdict, text = _answer_within(tokens, reply, found)
    elif reply.too_long:
        verdict = Verdict.MISMATCH
        text = f"refused ({reply.status}) as too long, within the stated limit"
    else:
        verdict, text = Verdict.UNVERIFIABLE, _no_answer(reply)
    return Check(check, verdict, text, tokens, needed=True, answered=verdict is Verdict.OK)


def _answer_within(tokens: int, reply: Reply, found: Sequence[Trace]) -> tuple[Verdict, str]:
    if found:
        return Verdict.LEAK, f"200 with foreign words: {_told(found)}"
    if reply.finish is None:
        return Verdict.MISMATCH, "200 without a finish reason or any answer"
    if reply.prompt_tokens is None:
        return Verdict.UNVERIFIABLE, "200 without usage: its count cannot be compared"
    if reply.prompt_tokens != tokens:
        return Verdict.MISMATCH, f"200, usage says {reply.prompt_tokens} prompt tokens"
    return Verdict.OK, f"200, usage {reply.prompt_tokens}, own words only"


def judge_together(tokens: int, other: int, reply: Reply, found: Sequence[Trace]) -> Check:
    """One of two answers asked for at once; ``other`` is the other prompt's length.

    Its count on this answer is the other's answer, whatever the words.
    """
    check = judge_within("together", tokens, reply, found)
    if check.verdict is Verdict.MISMATCH and reply.prompt_tokens == other != tokens:
        return replace(check, verdict=Verdict.LEAK, text=f"{check.text}: the other prompt's answer")
    return check


def after_no_abort(check: Check) -> Check:
    """A clean abort check proves nothing where P1's answer was over before it hung up."""
    if check.verdict is not Verdict.OK:
        return check
    text = "own words only, but the first answer was over before it could be cancelled"
    return replace(check, verdict=Verdict.UNVERIFIABLE, text=text, needed=False, answered=False)


def judge_over(tokens: int, reply: Reply, found: Sequence[Trace]) -> Check:
    """A prompt over the limit: the engine must refuse it. Any 200 is a fault, whatever it says."""
    if reply.status == 200:
        if found:
            text = f"answered over the limit, with foreign words: {_told(found)}"
            return Check("over", Verdict.LEAK, text, tokens, needed=True, taken=True)
        text = f"answered over the limit (200, usage {reply.prompt_tokens})"
        return Check("over", Verdict.MISMATCH, text, tokens, needed=True, taken=True)
    if reply.status in _REFUSED:
        why = "" if reply.too_long else ", in words this version does not know"
        return Check("over", Verdict.OK, f"refused ({reply.status}{why})", tokens, needed=True)
    if reply.status == 500:
        text = "broke (500) where it should refuse"
        return Check("over", Verdict.MISMATCH, text, tokens, needed=True)
    return Check("over", Verdict.UNVERIFIABLE, _no_answer(reply), tokens, needed=True)


def judge_salt(tokens: int, other: Reply, again: Reply) -> Check:
    """After P1 sent a prompt: ``other`` is P2's same prompt, ``again`` P1's once more."""

    def verdict(of: Verdict, text: str) -> Check:
        return Check("salt", of, text, tokens)

    if other.cached_tokens:
        return verdict(
            Verdict.LEAK, f"{other.cached_tokens} cached tokens of a prompt under another salt"
        )
    if other.status != 200 or again.status != 200:
        return verdict(Verdict.UNVERIFIABLE, _no_answer(again if other.status == 200 else other))
    if other.cached_tokens is None or not again.cached_tokens:
        return verdict(
            Verdict.UNVERIFIABLE, "cached_tokens is not reported, or the cache does not answer"
        )
    return verdict(
        Verdict.OK, f"0 cached tokens under another salt, {again.cached_tokens} under its own"
    )


def _no_answer(reply: Reply) -> str:
    return f"no answer to judge (status {reply.status})" if reply.status else "no answer came"


def _told(found: Sequence[Trace]) -> str:
    return ", ".join(f"{t.label} ({t.runs} runs of 5 words, {t.tags} tags)" for t in found)
