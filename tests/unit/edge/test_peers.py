"""What processes that serve together tell each other."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec

from gateway.core.probe_schedule import History
from gateway.edge.peers import Word, hear, tell, together


def backend(name="a", load=0, digest="e1", cleared="", held=False):
    past = SimpleNamespace(probed=History(cleared=cleared))
    return SimpleNamespace(
        name=name, load=load, load_elsewhere=0, digest=digest, held=held, past=past
    )


def test_each_tells_its_load_and_what_it_cleared():
    assert tell([backend("a", 3), backend("b", 0, cleared="e1")]) == Word(
        {"a": 3, "b": 0}, {"b": "e1"}
    )


def test_loads_add_up():
    words = [Word({"a": 1}, {"a": "e1"}), Word({"a": 2, "b": 5}), Word()]
    assert together(words) == Word({"a": 3, "b": 5}, {"a": "e1"})
    assert together([]) == Word()


def test_a_canary_is_cleared_as_others_found_it():
    here = backend(held=True)
    hear([here], Word({"a": 2}, {"a": "e1"}))
    assert here.load_elsewhere == 2
    assert here.past.probed.cleared == "e1"


def test_another_engine_is_not():
    here = backend(held=True, digest="e2")
    hear([here], Word({}, {"a": "e1"}))
    assert here.past.probed.cleared == ""


def test_load_that_is_no_longer_told_is_gone():
    here = backend()
    hear([here], Word({"a": 2}))
    hear([here], Word())
    assert here.load_elsewhere == 0


def test_it_survives_the_wire():
    word = Word({"a": 3}, {"a": "e1"})
    assert msgspec.json.decode(msgspec.json.encode(word), type=Word) == word
