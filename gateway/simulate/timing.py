"""How long the simulated engine takes. Seconds throughout; the caller does the waiting.

TTFT = base + uncached/v x lognormal(0, spread) x (1 + queued prefills): prefill is compute-bound
and so linear in the tokens that are not cached; the spread is that of real engines (0.25 to 0.35).
A rejected prompt that goes on is a prefill of one token: it answers too fast.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency model. ``prefill_tokens_per_second`` 0 means that prefill takes no time."""

    base: float = 0.02
    prefill_tokens_per_second: float = 100_000.0
    inter_token: float = 0.005
    spread: float = 0.3

    def __post_init__(self) -> None:
        if min(self.base, self.prefill_tokens_per_second, self.inter_token, self.spread) < 0:
            raise ValueError("latencies cannot be negative")

    def slowness(self, rng: random.Random, queued: int) -> float:
        """One request's factor on its prefill time."""
        return rng.lognormvariate(0.0, self.spread) * (1 + queued)

    def prefill(self, uncached: int, slowness: float) -> float:
        """Time to prefill ``uncached`` tokens."""
        if not self.prefill_tokens_per_second:
            return 0.0
        return uncached / self.prefill_tokens_per_second * slowness

    def between_tokens(self, rng: random.Random) -> float:
        """Time from one token to the next, within a tenth of the mean."""
        return self.inter_token * rng.uniform(0.9, 1.1) if self.inter_token else 0.0


INSTANT = Timing(base=0.0, prefill_tokens_per_second=0.0, inter_token=0.0)
