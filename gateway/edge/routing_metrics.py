"""The series of the choice among backends, and of those left out of it."""

from __future__ import annotations

from gateway.edge.series import Maker


class RoutingMetrics:
    """Made once, as a part of ``Metrics``."""

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
