"""From measured growth to a size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from multidict import CIMultiDict

from benchmarks.growth.gate import Case, key_of
from benchmarks.growth.sizing import Measured, Need, at, size
from gateway.core.tenants import directory, identify
from gateway.edge.clock import wall_clock
from gateway.settings import NoSecrets, parse

MEASURED = Measured(
    new=[(1_000, 1_000.0), (100_000, 10_000.0)],
    turn=[(1_000, 500.0), (100_000, 5_000.0)],
    prompt_mib=[(1_000, 10.0), (100_000, 100.0)],
    tenants=[(10, 1.0), (1_000, 2.0)],
    backends=[(1, 0.0), (101, 100.0)],
    backend_share=0.001,
    event=50.0,
    store=200.0,
    store_calls=2.0,
    crowd=[(1, 1.0), (2, 1.0), (8, 1.5)],
    worker_mib=400.0,
    supervisor_mib=70.0,
    tenant_mib=0.01,
    backend_mib=1.0,
    stream_mib=0.1,
)


@pytest.mark.parametrize(
    ("place", "value"), [(0, 0.0), (1, 0.0), (51, 50.0), (101, 100.0), (201, 200.0)]
)
def test_values_are_linear_between_points_and_beyond(place, value):
    assert at(MEASURED.backends, place) == value


def test_a_small_gateway_is_one_process():
    need = Need("", {1_000: 100}, tenants=10, backends=1, store=False)
    got = size(need, MEASURED)
    assert got.cores == pytest.approx(0.1 + 0.001)
    assert (got.workers, got.store_calls) == (1, 0)
    assert got.memory_mib == pytest.approx(400 + 10 + 0.1 + 1)


def test_everything_that_costs_is_counted():
    need = Need("", {1_000: 100, 100_000: 10}, 200, 20.0, tenants=1_000, backends=101, store=True)
    calls = 100 * (2 * 1_000 + 100 + 200) + 10 * (2 * 10_000 + 100 + 200)
    cores = (calls + 200 * 20 * 50) / 1e6 + 0.101
    got = size(need, MEASURED)
    assert got.cores == pytest.approx(cores)  # two workers cost each other nothing here
    assert got.workers == 2
    assert got.memory_mib == pytest.approx(2 * (400 + 100 + 10 + 101) + 20 + 70)
    assert got.store_calls == 220


def test_next_turns_cost_less_and_many_workers_cost_each_other():
    need = Need("", {100_000: 400}, store=False)
    assert size(replace(need, turns=True), MEASURED).cores < size(need, MEASURED).cores
    assert size(need, MEASURED).cores == pytest.approx((4 + 0.001) * 1.41, rel=0.07)


def test_what_is_measured_is_a_configuration_with_a_key_for_each_tenant():
    case = Case(["http://127.0.0.1:1", "http://127.0.0.2:1"], [5, 7], workers=2, store="redis://h")
    settings = parse(case.text(2, 3), NoSecrets())
    tenants = directory(settings)
    for number in (0, 1):
        headers = CIMultiDict({"authorization": f"Bearer {key_of(number)}"})
        assert identify(headers, tenants, wall_clock()).id == f"tenant-{number:06d}"
    assert (len(settings.backends), settings.workers) == (2, 2)
