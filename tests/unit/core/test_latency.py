"""Time to first token against physics."""

import math
import random
from dataclasses import dataclass, replace

import pytest

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
    assert model.recent == ((1_000, 2_000.0),) * 4
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


# --- what it takes to be learnt ----------------------------------------------------------------


def of(pairs, **more):
    model = PrefillModel(enough=8, **more)
    for uncached, speed in pairs:
        model = model.learned(uncached, uncached / speed)
    return model


def test_long_prompts_are_believed_as_far_as_short_ones_bear_them_out():
    honest = [(5_000, 1_000.0)] * 4
    assert of(honest + [(50_000, 1_400.0)] * 12).ceiling() == 2_800.0
    assert of(honest + [(50_000, 90_000.0)] * 12).ceiling() == 3_000.0


def test_prompts_of_one_length_all_bear_each_other_out():
    assert of([(50_000, 100.0)] * 15 + [(50_000, 1_000.0)]).ceiling() == 2_000.0


def test_short_prompts_that_become_faster_raise_the_ceiling():
    """An engine that was busy while it was learnt must not be suspected for ever."""
    model = of([(5_000, 1_000.0)] * 40)
    assert judge_ttft(model, 20_000, 5.0).suspect
    for _ in range(10):
        model = model.learned(5_000, 1.0)
    assert judge_ttft(model, 20_000, 5.0).verdict is Verdict.OK


# --- a simulated backend -----------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """Times as they are modelled: TTFT = fixed + uncached / speed x lognormal(0, 0.3) x (1 + queue)
    + an exponential jitter of 3 ms in the mean.

    Lengths are log-uniform. ``over`` of the prompts are longer than the pool, ``leaking`` of
    those are rejected and answered after ``fixed`` and ``leak`` x lognormal(0, 0.3) seconds. Of
    the prompts, ``cached`` have a part in the prefix cache that the gateway knows of. A queue is
    geometric; ``busy`` says how, for the n-th request.
    """

    speed: float = 40_000.0
    fixed: float = 0.02
    shortest: int = 1_000
    pool: int = 24_576
    longest: int = 100_000
    over: float = 0.3
    leaking: float = 0.0
    leak: float = 0.03
    cached: float = 0.0
    busy: tuple[float, ...] = (0.5,)

    def answers(self, number, rng):
        for place in range(number):
            over = rng.random() < self.over
            bounds = (self.pool, self.longest) if over else (self.shortest, self.pool)
            tokens = int(math.exp(rng.uniform(*map(math.log, bounds))))
            waiting, busy = 0, self.busy[place // 200 % len(self.busy)]
            while rng.random() < busy:
                waiting += 1
            if over and rng.random() < self.leaking:
                yield tokens, self.fixed + self.leak * rng.lognormvariate(0, 0.3), True
                continue
            uncached = int(tokens * rng.random()) if rng.random() < self.cached else tokens
            slowness = rng.lognormvariate(0, 0.3) * (1 + waiting)
            ttft = self.fixed + uncached / self.speed * slowness + rng.expovariate(1 / 0.003)
            yield uncached, ttft, False


@dataclass
class Tally:
    leaks: int = 0
    found: int = 0
    honest: int = 0
    alarms: int = 0


def served(engine, number, seed):
    """What is judged of the engine's answers by a model that learns as the gateway does."""
    model, tally = PrefillModel(), Tally()
    for uncached, ttft, leaked in engine.answers(number, random.Random(seed)):
        result = judge_ttft(model, uncached, ttft)
        if result.verdict is not Verdict.UNVERIFIABLE:
            tally.leaks += leaked
            tally.honest += not leaked
            tally.found += leaked and result.suspect
            tally.alarms += result.suspect and not leaked
        if not result.suspect:
            model = model.learned(uncached, ttft)
    return tally


INCIDENT = Engine(
    speed=100_000.0, shortest=2_000, pool=681_280, longest=1_048_576, over=0.05, leak=0.3
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("engine", "leaking"),
    [(Engine(over=over), 1.0) for over in (0.01, 0.1, 0.3, 0.5)]
    + [(Engine(over=0.5), 0.5), (Engine(over=0.3, cached=0.5), 1.0), (INCIDENT, 1.0)],
)
def test_leaks_from_the_first_request_on_do_not_teach_that_they_are_possible(engine, leaking, seed):
    told = served(replace(engine, leaking=leaking), 1_500, seed)
    assert told.leaks >= 5
    assert told.found >= 0.99 * told.leaks
    assert told.alarms == 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "engine",
    [
        Engine(),
        Engine(speed=100_000.0, fixed=0.02),
        Engine(speed=10_000.0, cached=0.55),
        Engine(busy=(0.05, 0.85)),
        Engine(busy=(0.85, 0.05)),
        INCIDENT,
    ],
)
def test_no_honest_answer_is_suspected(engine, seed):
    told = served(engine, 2_000, seed)
    assert (told.alarms, told.leaks) == (0, 0)
    assert told.honest > 150


def test_where_physics_ends():
    """Leaks that take a third of a prefill's time are not to be told from a quick one."""
    told = served(Engine(over=0.3, leaking=1.0, leak=0.3), 1_500, 1)
    assert told.found < 0.8 * told.leaks
