"""Time to first token against physics: a long prompt cannot be prefilled in no time.

The floor (research/detection.md 3.5): prefilling ``u`` uncached tokens takes at least
``u / v_max`` seconds, where ``v_max`` is the 0.99 quantile of the speeds ``u / TTFT`` this
backend has shown, widened by a margin of 2. An answer under the floor was not computed from its
prompt. ``u`` subtracts every token that this tenant's earlier prompts could have left in the
prefix cache, so that a cache hit is not taken for a leak.

The model is frozen: learning returns a new one, and a suspect answer is never learnt from.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field, replace

from gateway.types import CheckResult, Verdict

CHECK = "latency"
QUANTILE = 0.99
MARGIN = 2.0


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """Speeds seen on one backend, tokens a second.

    ``window`` speeds are kept, oldest out first; nothing is judged before ``enough`` were seen,
    nor below ``min_tokens`` uncached tokens, where fixed costs hide the prefill. ``given`` is a
    speed the operator vouches for: judged by from the start, and never below it.
    """

    recent: tuple[float, ...] = ()
    ordered: tuple[float, ...] = field(default=(), repr=False)
    min_tokens: int = 16_384
    enough: int = 20
    window: int = 512
    given: float | None = None

    def ceiling(self) -> float | None:
        """The fastest prefill believed, tokens a second; None while too little was seen."""
        if len(self.ordered) < self.enough:
            return self.given
        fast = self.ordered[min(len(self.ordered) - 1, int(QUANTILE * len(self.ordered)))]
        return max(fast * MARGIN, self.given or 0.0)

    def teaches(self, uncached: int) -> bool:
        """Whether a prompt is long enough for its TTFT to be mostly prefill."""
        return uncached >= self.min_tokens // 4

    def learned(self, uncached: int, ttft: float) -> PrefillModel:
        """The model after one more trusted answer. Short prompts and cached ones teach nothing."""
        if not self.teaches(uncached) or ttft <= 0:
            return self
        speed = uncached / ttft
        recent = (*self.recent, speed)[-self.window :]
        ordered = list(self.ordered)
        insort(ordered, speed)
        if len(self.recent) == self.window:
            ordered.remove(self.recent[0])
        return replace(self, recent=recent, ordered=tuple(ordered))


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
