"""Time to first token against physics: a long prompt cannot be prefilled in no time.

The floor (research/detection.md 3.5): prefilling ``u`` uncached tokens takes at least
``u / v_max`` seconds, where ``v_max`` is the fastest speed ``u / TTFT`` this backend has shown,
widened by a margin of 2. An answer under the floor was not computed from its prompt. ``u``
subtracts every token that this tenant's earlier prompts could have left in the prefix cache, so
that a cache hit is not taken for a leak.

What counts as shown must not be what a leak shows, for leaked answers that are not found (in the
beginning all of them) are learnt from too. The 0.99 quantile alone is theirs as soon as they are
over one in a hundred. But prefill takes its time per token, a leak does not: the same time for
more tokens looks like more speed. So the speed of long prompts counts only as far as shorter ones
agree: ``v_max`` is the 0.99 quantile over all, and at most ``AGREEMENT`` times that over the
shortest quarter. The incident's leaks, in prompts over the pool, are never among the shortest
while they are under three quarters of all that is learnt from.

The model is frozen: learning returns a new one, and a suspect answer is never learnt from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.types import CheckResult, Verdict

CHECK = "latency"
QUANTILE = 0.99
MARGIN = 2.0
SHORTEST = 4  # one in so many prompts is one of the shortest
# Short prompts look slower than they are prefilled: fixed costs worth c tokens of prefill make one
# of u look 1 + c/u times slower. This is room for 2,048 in the shortest that teach.
AGREEMENT = 1.5


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """Speeds seen on one backend.

    ``recent`` are ``window`` pairs of uncached tokens and tokens a second, oldest out first;
    ``fastest`` is the speed they agree on. Nothing is judged before ``enough`` were seen, nor
    below ``min_tokens`` uncached tokens, where fixed costs hide the prefill. ``given`` is a speed
    the operator vouches for: judged by from the start, and never below it.
    """

    recent: tuple[tuple[int, float], ...] = ()
    fastest: float | None = None
    min_tokens: int = 16_384
    enough: int = 48
    window: int = 512
    given: float | None = None

    def ceiling(self) -> float | None:
        """The fastest prefill believed, tokens a second; None while too little was seen."""
        if self.fastest is None:
            return self.given
        return max(self.fastest * MARGIN, self.given or 0.0)

    def teaches(self, uncached: int) -> bool:
        """Whether a prompt is long enough for its TTFT to be mostly prefill."""
        return uncached >= self.min_tokens // 4

    def learned(self, uncached: int, ttft: float) -> PrefillModel:
        """The model after one more trusted answer. Short prompts and cached ones teach nothing."""
        if not self.teaches(uncached) or ttft <= 0:
            return self
        recent = (*self.recent, (uncached, uncached / ttft))[-self.window :]
        fastest = _agreed(recent) if len(recent) >= self.enough else None
        return replace(self, recent=recent, fastest=fastest)


def _agreed(seen: tuple[tuple[int, float], ...]) -> float:
    """The fast quantile of all speeds, as far as the shortest prompts bear it out."""
    longest_of_them = sorted(uncached for uncached, _ in seen)[(len(seen) - 1) // SHORTEST]
    shortest = (speed for uncached, speed in seen if uncached <= longest_of_them)
    return min(_fast(speed for _, speed in seen), AGREEMENT * _fast(shortest))


def _fast(speeds: Iterable[float]) -> float:
    ordered = sorted(speeds)
    return ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))]


def judge_ttft(model: PrefillModel, uncached: int | None, ttft: float) -> CheckResult:
    """Whether a first byte after ``ttft`` seconds is physically possible for this prompt.

    ``uncached`` is None where the prompt's length or its cached share is not known.
    """
    if uncached is None:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "not_counted")
    if uncached < model.min_tokens:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "short_prompt")
    ceiling = model.ceiling()
    if ceiling is None:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "learning")
    floor = uncached / ceiling
    if ttft < floor:
        return CheckResult(
            CHECK, Verdict.MISMATCH, "faster_than_prefill", round(floor, 4), round(ttft, 4), True
        )
    return CheckResult(CHECK, Verdict.OK, "", round(floor, 4), round(ttft, 4))
