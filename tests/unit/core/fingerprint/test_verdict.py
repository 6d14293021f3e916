"""What runs of foreign text prove."""

from __future__ import annotations

import pytest

from gateway.core.fingerprint.index import Kind
from gateway.core.fingerprint.verdict import Run, Strength, Thresholds, strength

LIMITS = Thresholds(weak=80, pair=96, strong=128, answer=256)


def prompt(length, tenant=1, first=0):
    return Run(tenant, Kind.PROMPT, first, length)


def reply(length):
    return Run(1, Kind.ANSWER, 0, length)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], Strength.NONE),
        ([prompt(79)], Strength.NONE),
        ([prompt(80)], Strength.WEAK),
        ([prompt(127)], Strength.WEAK),
        ([prompt(128)], Strength.STRONG),
        ([prompt(96), prompt(96, first=5)], Strength.STRONG),
        ([prompt(95), prompt(95, first=5)], Strength.WEAK),
        ([prompt(96), prompt(96)], Strength.WEAK),  # the same stretch, in two channels
        ([prompt(96, tenant=1), prompt(96, tenant=2, first=5)], Strength.WEAK),
        ([reply(255)] * 3, Strength.NONE),
        ([reply(256)], Strength.STRONG),
        ([prompt(80), reply(255)], Strength.WEAK),
    ],
)
def test_strength(runs, expected):
    assert strength(runs, LIMITS) is expected
