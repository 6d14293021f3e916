"""Whether a backend's answers have more weak findings than chance explains.

Wald's sequential test of a finding rate ``p1`` against ``p0``, restarted whenever it favours
``p0`` (Page's CUSUM): the sum of log-likelihood ratios never goes below zero, and passes
ln(1/alpha) by chance once in 1/alpha answers or more (Lorden 1971).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The test's state for one backend. ``p0`` is the rate of findings in clean answers.

    ``reset`` it once it was acted on.
    """

    p0: float = 0.002
    p1: float = 0.02
    alpha: float = 1e-6
    score: float = 0.0

    def after(self, *, found: bool) -> Suspicion:
        """The state after one more answer."""
        step = log(self.p1 / self.p0) if found else log((1 - self.p1) / (1 - self.p0))
        return replace(self, score=max(0.0, self.score + step))

    @property
    def alarmed(self) -> bool:
        """Whether chance is no explanation any more."""
        return self.score >= log(1 / self.alpha)

    def reset(self) -> Suspicion:
        """From the beginning."""
        return replace(self, score=0.0)
