"""Standings over several backends, and over reloads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.core.quarantine import Case, Clue, Rules, State
from gateway.edge.standing import Past, Standings
from gateway.types import Evidence


class Member:
    def __init__(self, standings, name, served=(), told=()):
        self.name = name
        self.past = standings.past(name, f"http://{name}")
        self._served, self._told = served, told

    def serves(self, model):
        return not self._served or model in self._served

    def models(self):
        return self._told


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def standings(clock):
    return Standings(lambda: clock.now)


def certain(when=0.0):
    return Clue(when, "binding", "t", Evidence.CERTAIN, forgeable=False)


def state(standings, member):
    return standings.of(member).state


def test_shares_are_of_the_backends_that_serve_the_model(standings):
    lone = Member(standings, "lone", ("n",), ("n",))
    pair = [Member(standings, name, ("m",), ("m",)) for name in "ab"]
    standings.configure(Rules(), (lone, *pair))
    for member in (lone, *pair):
        standings.report(member, certain())
    states = [state(standings, member) for member in (lone, *pair)]
    assert states == [State.SUSPECT, State.QUARANTINED, State.SUSPECT]


def test_a_backend_that_tells_no_models_shares_with_all(standings):
    members = [Member(standings, name) for name in "abcd"]
    standings.configure(Rules(max_share=0.5), members)
    for member in members:
        standings.report(member, certain())
    assert sum(state(standings, member) is State.QUARANTINED for member in members) == 2


def test_a_release_makes_room(standings):
    one, other = (Member(standings, name) for name in "ab")
    standings.configure(Rules(), (one, other))
    standings.report(one, certain())
    assert standings.release("a", "operator") is one
    assert state(standings, one) is State.SERVING
    assert standings.of(one).reason == "released by operator"
    standings.report(other, certain())
    assert state(standings, other) is State.QUARANTINED
    assert standings.release("z", "operator") is None


def test_the_past_is_the_same_for_name_and_url_and_no_other(standings):
    assert standings.past("a", "http://x") is standings.past("a", "http://x")
    assert standings.past("a", "http://x") is not standings.past("a", "http://y")


def test_suspicion_ends_with_the_clock(standings, clock):
    one = Member(standings, "a")
    standings.configure(Rules(window=60.0), (one,))
    standings.report(one, certain())  # the only one: capped
    assert state(standings, one) is State.SUSPECT
    clock.now = 60.0
    assert state(standings, one) is State.SERVING


def test_suspicion_is_of_the_time_it_began_whatever_repeats_it(standings, clock):
    one = Member(standings, "a")
    standings.configure(Rules(window=60.0), (one,))
    for clock.now in (10.0, 30.0, 80.0):
        standings.report(one, certain(clock.now))  # the only one: capped
        assert standings.of(one).since == 10.0
    standings.release("a", "operator")
    standings.report(one, certain(90.0))
    assert standings.of(one).since == 90.0
    clock.now = 200.0
    standings.report(one, certain(200.0))
    assert standings.of(one).since == 200.0


def test_another_process_forgets_what_was_learnt_not_what_was_found():
    case = Case(clues=(certain(),))
    past = Past(case, echoes={"openai_chat"}, proofs=20)
    past.forget_process()
    assert (past.echoes, past.proofs, past.case) == (set(), 0, case)
