"""The words processes exchange, and what one makes of another's."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.capacity import Seen, Snapshot
from gateway.edge.discovery import Discovery
from gateway.edge.one_prober import Told, Word
from gateway.types import Role, WorkerFacts

TEXT = st.text(max_size=8)
NUMBER = st.none() | st.integers(0, 2**53)
FACTS = st.builds(
    WorkerFacts,
    worker=TEXT,
    engine=TEXT,
    role=st.sampled_from(Role),
    max_prompt_tokens=NUMBER,
    pool_tokens=NUMBER,
    context_tokens=NUMBER,
    truncates=st.none() | TEXT,
    models=st.lists(TEXT, max_size=2).map(tuple),
    version=st.none() | TEXT,
    incarnation=TEXT,
    disaggregated=st.booleans(),
    kv_checksum=st.none() | st.booleans(),
    notes=st.lists(TEXT, max_size=2).map(tuple),
)
SEEN = st.builds(
    Seen,
    facts=st.lists(FACTS, max_size=3).map(tuple),
    at=st.none() | st.floats(0, 1e9),
    trouble=st.none() | TEXT,
    stated=NUMBER,
)
SNAPSHOTS = st.dictionaries(TEXT, SEEN, max_size=3).map(Snapshot)


@given(SNAPSHOTS, st.none() | TEXT, st.none() | TEXT, st.floats(0, 1e9))
def test_a_word_arrives_as_it_was_told(snapshot, engine, router, at):
    told = Told("a", Word(snapshot, engine, router, at))
    encoded = msgspec.json.encode(told)
    assert b"\n" not in encoded  # which ends a message
    assert msgspec.json.decode(encoded, type=Told) == told


def snapshot(limit, *, stated=None, incarnation="1"):
    facts = WorkerFacts("w", "sglang", max_prompt_tokens=limit, incarnation=incarnation)
    return Snapshot({"w": Seen((facts,), 1.0, None, stated)})


def discovery():
    return Discovery("a", "http://h", None, clock=lambda: 0.0)


def test_an_older_word_does_not_replace_a_newer_one():
    one = discovery()
    one.take(Word(snapshot(100), "sglang", None, 5.0))
    one.take(Word(snapshot(900), "vllm", None, 4.9))
    assert (one.snapshot, one.engine.name) == (snapshot(100), "sglang")
    one.take(Word(snapshot(50), "sglang", "sgl_gateway", 5.0))
    assert (one.snapshot, one.router.name) == (snapshot(50), "sgl_gateway")


@pytest.mark.parametrize(
    ("own", "told", "expected"),
    [
        (snapshot(100, stated=80), snapshot(100), snapshot(100, stated=80)),  # crossed on the way
        (snapshot(100, stated=80), snapshot(100, stated=70), snapshot(100, stated=70)),
        (snapshot(100, stated=60), snapshot(100, stated=70), snapshot(100, stated=60)),
        (snapshot(100), snapshot(100, stated=70), snapshot(100, stated=70)),
        (snapshot(100, stated=80), snapshot(90, incarnation="2"), snapshot(90, incarnation="2")),
        (snapshot(100, stated=80), Snapshot(), Snapshot()),
    ],
)
def test_a_limit_learnt_here_outlives_the_word_of_another(own, told, expected):
    one = discovery()
    one.take(Word(own, "sglang", None, 1.0))
    one.take(Word(told, "sglang", None, 2.0))
    assert one.snapshot == expected


def test_what_is_asked_makes_the_key():
    keys = {
        Discovery(name, url, None, engine_name=engine, extra_workers=workers, clock=None).key
        for name in ("a", "b")
        for url in ("http://h", "http://i")
        for engine in ("auto", "sglang")
        for workers in ((), ("http://w",))
    }
    assert len(keys) == 16
