import random
import statistics

import pytest

from gateway.simulate.timing import INSTANT, Timing


def test_prefill_is_linear_in_uncached_tokens():
    timing = Timing(prefill_tokens_per_second=100_000.0)
    assert timing.prefill(681_000, 1.0) == pytest.approx(6.81)
    assert timing.prefill(1, 1.0) == pytest.approx(1e-5)


def test_slowness_is_lognormal_and_grows_with_the_queue():
    timing, rng = Timing(spread=0.3), random.Random(1)
    drawn = [timing.slowness(rng, 0) for _ in range(5000)]
    assert statistics.median(drawn) == pytest.approx(1.0, rel=0.03)
    assert timing.slowness(random.Random(2), 3) == 4 * timing.slowness(random.Random(2), 0)


def test_instant_takes_no_time():
    rng = random.Random(1)
    assert INSTANT.base == INSTANT.prefill(10**6, 1.0) == INSTANT.between_tokens(rng) == 0.0


def test_negative_latencies_are_refused():
    with pytest.raises(ValueError, match="negative"):
        Timing(base=-0.1)
