"""What may be said of a backend's probes."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.probe import wilson
from gateway.core.probe_schedule import Occasion, Release, Schedule
from gateway.edge.configured import probe_schedule
from gateway.edge.watching import gate_orders, probe_orders
from gateway.settings import NoSecrets, Settings, SettingsError, parse
from gateway.settings.explain import explain
from gateway.types import Action


def with_probe(probe: Any, **more: Any) -> Settings:
    backend = {"name": "a", "url": "http://h", "probe": probe, **more}
    return parse({"backends": [backend]}, NoSecrets())


def schedule(probe: Any) -> Schedule:
    written = with_probe(probe).backends[0].probe
    assert written is not None
    return probe_schedule(written)


def test_there_is_none_unless_it_is_written() -> None:
    assert with_probe(None).backends[0].probe is None
    assert "probe" not in explain(with_probe(None))


def test_written_without_a_word_it_leaves_what_serves_alone() -> None:
    assert schedule({}) == Schedule(when=(Occasion.QUARANTINE,))
    assert "probes never end a quarantine" in explain(with_probe({}))


def test_every_key_reaches_the_schedule() -> None:
    probe = {
        "when": ["start", "change", "serving", "quarantine"],
        "every": "6h",
        "retry": "1m",
        "at_load": 2,
        "plan": "full",
        "canary": True,
        "release": {"detection": "18/20", "bound": 0.1, "after": 5},
    }
    occasions = (Occasion.START, Occasion.CHANGE, Occasion.SERVING, Occasion.QUARANTINE)
    rule = Release(5, 0.1, wilson(18, 20))
    expected = Schedule(occasions, 21600.0, 60.0, 2, quick=False, canary=True, release=rule)
    assert schedule(probe) == expected
    told = explain(with_probe(probe))
    assert "NO REQUESTS until a probe" in told
    assert "5 clean probes in a row, once they exclude a leak rate over 10.00%" in told


def test_how_it_is_probed() -> None:
    [entry] = with_probe(
        {"rounds": 3, "idle": "1s", "action": "flag"},
        models=["glm-*", "qwen"],
        on_disconnect="drain",
    ).backends
    assert entry.probe is not None
    orders = probe_orders(entry, entry.probe)
    assert (orders.model, orders.named, orders.rounds, orders.idle) == ("qwen", False, 3, 1.0)
    assert (orders.action, orders.cancels) == (Action.FLAG, False)
    [entry] = with_probe({"model": "glm-5"}).backends
    assert entry.probe is not None
    orders = probe_orders(entry, entry.probe)
    assert (orders.model, orders.named, orders.cancels) == ("glm-5", True, True)


def test_the_gate_is_shown_only_unless_more_is_written() -> None:
    [entry] = with_probe(None).backends
    assert gate_orders(entry.gate).action is None
    [entry] = with_probe(None, gate={"context": 100, "headroom": 2, "action": "flag"}).backends
    orders = gate_orders(entry.gate)
    assert (orders.context, orders.headroom, orders.action) == (100, 2.0, Action.FLAG)


@pytest.mark.parametrize("detection", ["18/20", "1/1", "0.4", 0.4, 1])
def test_a_share_of_leaks_seen(detection: Any) -> None:
    assert schedule({"release": {"detection": detection}}).release is not None


@pytest.mark.parametrize(
    ("probe", "path"),
    [
        ({"when": ["often"]}, "when"),
        ({"when": ["start", "start"]}, "when"),
        ({"release": {}}, "release.detection"),
        *(
            ({"release": {"detection": bad}}, "release.detection")
            for bad in ("0/20", "21/20", "x", "0", "1.5", "1/0", True, "nan", None)
        ),
        ({"release": {"detection": "1", "bound": 0}}, "release.bound"),
        ({"release": {"detection": "1", "after": 0}}, "release.after"),
        ({"when": ["change"], "release": {"detection": "1"}}, "release"),
        ({"every": "0s"}, "every"),
        ({"canary": "yes"}, "canary"),
        ({"plans": "full"}, "plans"),
    ],
)
def test_what_is_refused(probe: Any, path: str) -> None:
    with pytest.raises(SettingsError) as refused:
        with_probe(probe)
    [problem] = refused.value.problems
    assert problem.path.startswith(f"backends[0].probe.{path}")
