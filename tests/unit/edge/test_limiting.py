"""The limiter of a configuration: its store's state in metrics and readiness, its end."""

from __future__ import annotations

import pytest

from gateway.edge.limiting import limiting
from gateway.edge.metrics import Metrics
from gateway.edge.store import StoreState
from gateway.edge.tasks import Tasks
from gateway.limits.watch import Outcome
from gateway.settings import NoSecrets, parse


def settings(**limits):
    backend = {"name": "a", "url": "http://h"}
    return parse({"backends": [backend], "limits": limits}, NoSecrets()).limits


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_what_the_limiter_tells_is_measured():
    metrics = Metrics()
    state = StoreState(metrics)
    state.store_is(up=True)
    assert (state.up, value(metrics, "poolgate_limiter_store_up")) == (True, 1)
    state.store_is(up=False)
    assert (state.up, value(metrics, "poolgate_limiter_store_up")) == (False, 0)
    state.decided(Outcome.UNCHECKED, 0.002)
    state.repaired(3)
    state.lost(2)
    decisions = "poolgate_limiter_decisions_total"
    assert value(metrics, decisions, outcome="unchecked") == 1
    assert value(metrics, decisions, outcome="admitted") == 0  # there from the beginning
    assert value(metrics, "poolgate_limiter_decision_seconds_sum") == 0.002
    assert value(metrics, "poolgate_limiter_keys_repaired_total") == 3
    assert value(metrics, "poolgate_limiter_slots_lost_total") == 2


@pytest.mark.parametrize("mode", ["refuse", "allow"])
async def test_only_a_store_that_is_down_and_refuses_makes_not_ready(mode):
    written = settings(store="redis://LEAKMARK:LEAKMARK@h:1/2", when_store_fails=mode)
    made = limiting(written, Metrics(), Tasks(), lambda: 0.0)
    assert made.not_ready is None
    made.store.store_is(up=False)
    assert (made.not_ready is None) is (mode == "allow")
    told = made.description()
    assert told["up"] is False
    assert told["when_store_fails"] == mode
    assert "LEAKMARK" not in str(told)
    await made.close()


async def test_memory_is_always_up():
    metrics = Metrics()
    made = limiting(settings(), metrics, Tasks(), lambda: 0.0)
    assert value(metrics, "poolgate_limiter_store_up") == 1
    assert made.description()["store"] == "memory"
    await made.close()
