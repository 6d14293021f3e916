from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gateway.edge.series import Maker
from gateway.types import Verdict


def test_children_are_found_again_and_shown() -> None:
    registry = CollectorRegistry()
    make = Maker(registry)
    counter = make.counter("calls", "Calls", "verdict")
    histogram = make.histogram("seconds", "Seconds", (1, 2), "how")
    counter.labels(Verdict.OK).inc()
    counter.labels("ok").inc()
    histogram.labels("fast").observe(0.5)
    assert counter.labels("ok") is counter.labels("ok")
    text = generate_latest(registry).decode()
    assert 'calls_total{verdict="ok"} 2.0' in text
    assert 'seconds_bucket{how="fast",le="1.0"} 1.0' in text


def test_a_label_too_few_is_still_a_mistake() -> None:
    counter = Maker(CollectorRegistry()).counter("calls", "Calls", "one", "two")
    with pytest.raises(ValueError, match="label"):
        counter.labels("x")
