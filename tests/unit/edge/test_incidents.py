"""Incidents: kept, bounded, found again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.edge.incidents import KEPT, PER_TENANT, Incidents
from gateway.edge.metrics import Metrics


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def incidents(clock):
    return Incidents(Metrics(), b"key", lambda: clock.now)


def incident(number=0, **more):
    usual = {"kind": "binding", "backend": "a", "tenant": "t", "source": None}
    return {"id": str(number), "time": f"2026-01-01T00:00:{number % 60:02}+00:00", **usual, **more}


def test_the_latest_are_kept(incidents):
    for number in range(KEPT + 5):
        incidents.open(incident(number))
    assert len(incidents) == KEPT
    assert next(iter(incidents))["id"] == "5"


def test_a_sink_gets_each_as_it_opens(incidents):
    got = []
    incidents.open(incident(0))
    incidents.sink = SimpleNamespace(put=got.append)
    incidents.open(incident(1))
    assert [one["id"] for one in got] == ["1"]


def test_a_tenant_has_so_many_a_minute_and_no_other_pays_for_it(incidents, clock):
    allowed = [incidents.admits("a", "binding") for _ in range(PER_TENANT.burst + 5)]
    assert allowed == [True] * PER_TENANT.burst + [False] * 5
    assert incidents.admits("b", "binding")
    clock.now = PER_TENANT.period
    assert incidents.admits("a", "binding")


def test_a_tenant_is_found_as_asker_and_as_source_by_name_and_by_hash(incidents):
    name = incidents.pseudonym("studio")
    incidents.open(incident(0, tenant=name))
    incidents.open(incident(1, source=name))
    incidents.open(incident(2))
    for asked in ("studio", name):
        assert [one["id"] for one in incidents.matching({"tenant": asked})] == ["1", "0"]


def test_pseudonyms_depend_on_the_key(incidents):
    assert "studio" not in incidents.pseudonym("studio")
    other = Incidents(Metrics(), b"another", lambda: 0.0)
    assert other.pseudonym("studio") != incidents.pseudonym("studio")
