"""What an attempt weighs and tells, whatever becomes of it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.choice import Load
from gateway.core.outlier import Failure, Health, Rules
from gateway.edge.attempts import Attempt, attempt
from gateway.edge.ejection import Ejections
from gateway.edge.exchange import Exchange
from gateway.edge.standing import Standings
from gateway.types import AtLeast, Bounded, Counted, Unverifiable
from unit.edge.test_backends import backend


def two(noted=None):
    """Two backends of one model, which may be ejected after two failures."""
    now = [0.0]
    standings = Standings(lambda: now[0])
    ejections = Ejections(standings, lambda: now[0], noted)
    made = [backend(name)[0] for name in "ab"]
    for one in made:
        one.ejections = ejections
    standings.configure(standings.rules, made)
    ejections.configure(Rules(2, 10.0, 30.0))
    return (*made, now)


def test_prompt_tokens_weigh_until_the_answer_begins_and_a_stream_until_it_ends():
    one, _, _ = two()
    first, second = Attempt(one, 700), Attempt(one, 50)
    assert one.past.load == Load(750, 0)
    first.answered()
    first.answered()
    assert one.past.load == Load(50, 1)
    first.completed()
    first.end()
    assert one.past.load == Load(50, 0)
    for _ in range(2):
        second.end()
    assert one.past.load == Load()


def test_what_comes_after_the_end_weighs_nothing():
    one, _, _ = two()
    late = Attempt(one, 700)
    late.end()
    late.answered()
    late.completed()
    assert one.past.load == Load()


@pytest.mark.parametrize(
    ("length", "tokens"),
    [(Counted((3, 4)), 7), (Bounded(5, 9), 9), (Unverifiable("x"), 100), (AtLeast(5), 100)],
)
def test_what_is_not_counted_weighs_as_much_as_it_may(length, tokens):
    one, _, _ = two()
    with attempt(one, Exchange("r", 0.0, "/", length=length, limit=100)) as trying:
        assert trying.tokens == tokens
        assert one.past.load.prefilling == tokens
    assert one.past.load == Load()


async def test_an_answer_that_is_still_read_weighs_until_that_is_over():
    one, _, _ = two()
    exchange = Exchange("r", 0.0, "/", length=Counted((7,)))
    done = asyncio.Event()
    with attempt(one, exchange):
        exchange.reading_on = asyncio.ensure_future(done.wait())
    assert one.past.load.prefilling == 7
    done.set()
    await exchange.reading_on
    await asyncio.sleep(0)
    assert one.past.load == Load()


def fail(one, times=1):
    for _ in range(times):
        trying = Attempt(one, 1)
        trying.failed(Failure.CONNECT)
        trying.end()


def test_failures_eject_one_and_never_both():
    noted = []
    one, other, _ = two(lambda name, why: noted.append((name, why)))
    fail(other)
    fail(one, 2)
    fail(other, 5)
    assert not one.ejections.open(one)
    assert other.ejections.open(other)
    assert noted == [("a", Failure.CONNECT)]


def test_a_trial_that_proves_nothing_leaves_the_next_one_to_try():
    one, _, now = two()
    fail(one, 2)
    now[0] = 10.0
    trial, beside = Attempt(one, 1), Attempt(one, 1)
    assert not one.ejections.open(one)
    beside.answered()  # began as another's trial was under way
    beside.failed(Failure.BROKE)
    assert one.past.health.until == 10.0
    trial.end()  # its client went away
    assert one.ejections.open(one)
    passed = Attempt(one, 1)
    passed.answered()
    assert one.past.health.until is None
    assert one.ejections.open(one)


def test_a_trial_that_fails_ejects_for_longer():
    one, _, now = two()
    fail(one, 2)
    now[0] = 10.0
    fail(one)
    assert one.past.health.until == 30.0
    now[0] = 30.0
    assert one.ejections.begin_trial(one)


def test_a_reload_that_turns_ejection_off_brings_everyone_back():
    one, _, _ = two()
    fail(one, 2)
    one.ejections.configure(Rules(2, 10.0, 30.0))
    assert not one.ejections.open(one)
    one.ejections.configure(Rules(0))
    assert one.past.health == Health()
