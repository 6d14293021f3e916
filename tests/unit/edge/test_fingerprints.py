"""What a backend's memory is sized by, and for how long it is kept."""

from __future__ import annotations

import pytest

from gateway.core.capacity import Seen, Snapshot
from gateway.edge.fingerprints import MOST_TOKENS, UNKNOWN_POOL, Memories, remembered_tokens
from gateway.types import WorkerFacts


def snapshot(*pools):
    workers = {
        f"w{place}": Seen((WorkerFacts(f"w{place}", "sglang", pool_tokens=pool),), 0.0)
        for place, pool in enumerate(pools)
    }
    return Snapshot(workers)


@pytest.mark.parametrize(
    ("pools", "multiple", "tokens"),
    [
        ((681_280,), 4.0, 2_725_120),
        ((100_000, 200_000), 1.5, 450_000),  # prefill and decode, or ranks
        ((100_000, None), 1.0, 100_000),
        ((None,), 2.0, 2 * UNKNOWN_POOL),
        ((), 1.0, UNKNOWN_POOL),
        ((10**9,), 4.0, MOST_TOKENS),
    ],
)
def test_as_much_as_all_pools_hold(pools, multiple, tokens):
    assert remembered_tokens(snapshot(*pools), multiple) == tokens


def test_a_backend_keeps_its_memory_until_its_pool_grows():
    now = [5.0]
    memories = Memories(b"secret", lambda: now[0])
    first = memories.of("a", 10_000)
    now[0] = 9.0
    assert memories.of("a", 10_000) is first
    assert memories.of("a", 5_000) is first
    assert memories.of("b", 10_000) is not first
    grown = memories.of("a", 20_000)
    assert grown is not first
    assert grown.began == 5.0  # it does not learn anew
    assert grown.index.nbytes > first.index.nbytes


def test_tenants_have_numbers():
    memories = Memories(b"secret", lambda: 0.0)
    assert [memories.number(name) for name in "abab"] == [0, 1, 0, 1]
    assert memories.tenant(1) == "b"


def test_memory_for_the_incidents_pool_is_small():
    memory = Memories(b"secret", lambda: 0.0).of("a", 4 * 681_280)
    assert memory.index.nbytes + memory.atoms.nbytes < 15e6
