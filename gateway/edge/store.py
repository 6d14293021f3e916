"""The limiter's store as operators see it: whether it answers, and what its decisions cost."""

from __future__ import annotations

from gateway.edge.metrics import Metrics
from gateway.limits.watch import Outcome


class StoreState:
    """Hears of the store from the limiter (``gateway.limits.watch.StoreWatch``)."""

    def __init__(self, metrics: Metrics) -> None:
        self.up = True
        self._metrics = metrics

    def store_is(self, up: bool) -> None:
        """It answers, or it no longer does."""
        self.up = up
        self._metrics.store_up.set(up)

    def decided(self, outcome: Outcome, seconds: float) -> None:
        """A request was decided."""
        self._metrics.limiter_decisions.labels(outcome).inc()
        self._metrics.limiter_seconds.observe(seconds)

    def repaired(self, keys: int) -> None:
        """What could not be read there was replaced."""
        self._metrics.limiter_keys_repaired.inc(keys)

    def lost(self, slots: int) -> None:
        """Places of running requests that could not be kept."""
        self._metrics.limiter_slots_lost.inc(slots)
