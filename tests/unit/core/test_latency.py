"""Time to first token against physics."""

import random

from gateway.core.latency import PrefillModel, judge_ttft
from gateway.types import Verdict


def trained(speed=10_000.0, spread=0.25, answers=200, seed=7):
    rng = random.Random(seed)
    model = PrefillModel()
    for _ in range(answers):
        uncached = rng.randint(8_000, 200_000)
        model = model.learned(uncached, uncached / (speed * rng.lognormvariate(0, spread)))
    return model


def test_a_leaked_answer_is_too_fast():
    result = judge_ttft(trained(), 681_280, 0.4)
    assert (result.verdict, result.reason, result.suspect) == (
        Verdict.MISMATCH,
        "faster_than_prefill",
        True,
    )
    assert result.expected > 10


def test_honest_answers_pass():
    model, rng = trained(), random.Random(3)
    for _ in range(2_000):
        uncached = rng.randint(16_384, 400_000)
        ttft = uncached / (10_000 * rng.lognormvariate(0, 0.25))
        assert judge_ttft(model, uncached, ttft).verdict is Verdict.OK


def test_nothing_is_judged_while_learning_nor_on_short_or_unknown_prompts():
    assert judge_ttft(PrefillModel(), 100_000, 0.0).reason == "learning"
    assert judge_ttft(trained(), 100, 0.0).reason == "short_prompt"
    assert judge_ttft(trained(), None, 0.0).reason == "not_counted"


def test_the_window_forgets_the_oldest():
    model = PrefillModel(enough=4, window=4, min_tokens=4)
    for speed in (1_000.0, 2_000.0, 2_000.0, 2_000.0, 2_000.0):
        model = model.learned(1_000, 1_000 / speed)
    assert model.recent == (2_000.0,) * 4
    assert sorted(model.recent) == list(model.ordered)
    assert model.ceiling() == 4_000.0


def test_short_prompts_teach_nothing():
    model = PrefillModel()
    assert model.learned(100, 0.001) is model
    assert model.learned(100_000, 0.0) is model


def test_a_speed_the_operator_vouches_for_judges_from_the_start_and_is_a_floor():
    model = PrefillModel(given=50_000.0)
    assert judge_ttft(model, 100_000, 1.9).reason == "faster_than_prefill"
    assert judge_ttft(model, 100_000, 2.0).verdict is Verdict.OK
    slow = PrefillModel(given=50_000.0, enough=4)
    for _ in range(4):
        slow = slow.learned(10_000, 10.0)
    assert slow.ceiling() == 50_000.0
    fast = PrefillModel(given=1_000.0, enough=4)
    for _ in range(4):
        fast = fast.learned(10_000, 1.0)
    assert fast.ceiling() == 20_000.0
