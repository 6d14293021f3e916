"""Pauses between restarts."""

from __future__ import annotations

from gateway.supervise.supervisor import LONGEST_DELAY, pause


def test_pauses_double_up_to_the_longest():
    pauses = [pause(failures) for failures in range(1, 12)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause(10_000) == LONGEST_DELAY
