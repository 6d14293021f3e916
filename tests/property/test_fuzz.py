"""The targets of ``make fuzz`` on changed seeds: a short, repeatable share of it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_targets import TARGETS
from fuzzing import changed

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", TARGETS)
@unhurried
@given(data=st.data())
def test_whatever_bytes_come(name, data):
    target = TARGETS[name]
    target.check(data.draw(changed(target.seeds(), target.tokens)))


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_passes(name):
    seeds = TARGETS[name].seeds()
    assert len(seeds) > 3
    for seed in seeds:
        TARGETS[name].check(seed)
