"""What the metrics are made with, and families that are made apart from the others."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Maker:
    """Makes families on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter."""
        return Counter(name, text, labels, registry=self._registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A gauge."""
        return Gauge(name, text, labels, registry=self._registry)

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        """A histogram."""
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)


class RoutingMetrics:
    """The choice among backends, and those left out of it."""

    def __init__(self, make: Maker) -> None:
        self.connect_retries = make.counter(
            "poolgate_connect_retries",
            "Requests sent elsewhere since this backend could not be reached",
            "backend",
        )
        self.ejections = make.counter(
            "poolgate_ejections", "Backends taken out for failures", "backend", "reason"
        )
        self.ejected = make.gauge(
            "poolgate_backend_ejected",
            "1: out for failures, or back for one trial; 0: in service",
            "backend",
        )
        self.outstanding = make.gauge(
            "poolgate_backend_outstanding_tokens",
            "Prompt tokens sent to a backend, or in its queue, whose answer has not begun",
            "backend",
        )
