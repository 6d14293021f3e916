"""The shared document: who wrote first is not overruled, whatever was read before."""

from __future__ import annotations

import pytest

from gateway.core.quarantine import Clue, Rules, State
from gateway.edge.replicas.line import Group, Line
from gateway.edge.replicas.standings import SharedStandings
from gateway.edge.standing import Standings
from gateway.settings.store import parse_store
from gateway.types import Evidence
from valkey_server import server


@pytest.fixture(scope="module")
def valkey():
    with server() as running:
        yield running


class Member:
    def __init__(self, standings, name):
        self.name = name
        self.past = standings.past(name, f"http://{name}")

    def serves(self, model):
        return True

    def models(self):
        return ("m",)


class Side:
    """One replica, without a gateway around it."""

    def __init__(self, store, clock):
        self.standings = Standings(clock)
        self.members = {name: Member(self.standings, name) for name in "ab"}
        self.standings.configure(Rules(), tuple(self.members.values()))
        self.line = Line(parse_store(store.url))
        self.shared = SharedStandings(self.line, Group(b"secret", "r"), self.standings)

    def find(self, name, check="binding", when=1.0):
        clue = Clue(when, check, "t", Evidence.CERTAIN, forgeable=False)
        self.standings.report(self.members[name], clue)

    def states(self):
        return [self.standings.of(member).state for member in self.members.values()]


@pytest.fixture
async def sides(valkey):
    with valkey.client() as client:
        client.flushall()
    made = [Side(valkey, lambda: 10.0) for _ in range(2)]
    yield made
    for side in made:
        await side.line.close()


def just_before_it_writes(side, work):
    """``work`` is done once, between what the side reads and what it writes."""
    ask = side.line.ask

    async def asking(*command):
        if command[0] == "EVAL" and command[5]:
            side.line.ask = ask
            await work()
        return await ask(*command)

    side.line.ask = asking


OUT, IN, SUSPECT = State.QUARANTINED, State.SERVING, State.SUSPECT


async def test_who_writes_first_is_not_overruled_by_who_read_before(sides):
    first, second = sides
    first.find("a")
    second.find("b", when=0.5)  # sooner, but told later
    just_before_it_writes(second, first.shared.exchange)
    await second.shared.exchange()
    assert first.states() == [OUT, IN]
    assert second.states() == [OUT, SUSPECT]
    await first.shared.exchange()
    assert first.states() == [OUT, SUSPECT]


async def test_what_is_found_while_it_is_being_agreed_is_told_next(sides):
    first, second = sides
    first.find("a")

    async def meanwhile():
        first.find("b", check="latency", when=2.0)

    just_before_it_writes(first, meanwhile)
    await first.shared.exchange()
    assert first.states() == [OUT, SUSPECT]
    await second.shared.exchange()
    assert second.states() == [OUT, IN]
    await first.shared.exchange()
    await second.shared.exchange()
    assert second.states() == [OUT, SUSPECT]


async def test_a_release_while_another_tells_of_more_ends_what_was_known_then(sides):
    first, second = sides
    first.find("a")
    for side in sides:
        await side.shared.exchange()
    second.find("a", check="latency", when=2.0)

    async def released():
        first.standings.release("a", "operator")
        await first.shared.exchange()

    just_before_it_writes(second, released)
    await second.shared.exchange()
    assert second.states() == [IN, IN]
    await first.shared.exchange()
    assert first.states() == [IN, IN]


async def test_nothing_is_written_where_nothing_is_new(sides, valkey):
    first, second = sides
    first.find("a")
    for side in (first, second, first):
        await side.shared.exchange()
    with valkey.client() as client:
        [key] = client.scan_iter("*")
        client.config_resetstat()
        for side in (first, second) * 5:
            await side.shared.exchange()
        calls = client.info("commandstats")
        assert calls["cmdstat_get"]["calls"] == 10
        assert "cmdstat_set" not in calls
        assert client.pttl(key) > 0
