"""Many weak findings together: when a backend is suspected, and how seldom by chance."""

from __future__ import annotations

import random

import pytest

from gateway.core.fingerprint.sprt import Suspicion


def answers_until_alarm(rate, seed, most=200_000):
    rng, state = random.Random(seed), Suspicion()
    for answer in range(1, most + 1):
        state = state.after(found=rng.random() < rate)
        if state.alarmed:
            return answer
    return most


@pytest.mark.parametrize(("rate", "mean"), [(1.0, 6), (0.2, 30), (0.05, 145)])
def test_leaks_raise_the_alarm_soon(rate, mean):
    times = [answers_until_alarm(rate, seed) for seed in range(200)]
    assert sum(times) / len(times) == pytest.approx(mean, rel=0.15)


def test_chance_does_not():
    assert all(answers_until_alarm(0.002, seed) == 200_000 for seed in range(5))


def test_clean_answers_are_no_credit_for_later():
    state = Suspicion()
    for _ in range(100_000):
        state = state.after(found=False)
    for _ in range(6):
        assert not state.alarmed
        state = state.after(found=True)
    assert state.alarmed
    assert not state.reset().alarmed
