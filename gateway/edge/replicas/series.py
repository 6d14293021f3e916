"""The metrics of what gateways tell each other; ``gateway.edge.metrics`` has the others."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class SharedSeries:
    """``up`` is 1 where nothing is to be shared. ``fingerprints`` counts hashes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.up = Gauge(
            "poolgate_shared_state_up",
            "1 integrity state is exchanged, or meant to be this process's alone; 0 it is not",
            registry=registry,
        )
        self.failures = Counter(
            "poolgate_shared_failures",
            "Rounds of exchange that the store did not answer",
            registry=registry,
        )
        self.fingerprints = Counter(
            "poolgate_shared_fingerprints",
            "Hashes shared with other gateways",
            ("result",),
            registry=registry,
        )
        self.unreadable = Counter(
            "poolgate_shared_unreadable",
            "What the store held that no gateway of the group wrote",
            registry=registry,
        )
        self.up.set(True)
        for result in ("told", "heard", "dropped", "missed"):
            self.fingerprints.labels(result)
