"""Who sent a window, for how long it is known, and how much memory that takes."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.core.fingerprint.index import BATCH, Index, Kind

A, B, C, D = 1, 2, 3, 4


def hashes(count, seed=0):
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, count, np.uint64))


def add(index, tenant, values, kind=Kind.PROMPT):
    return sum(1 for _ in index.add(tenant, kind, values))


def share_found(index, values, tenant=B):
    return len(index.hits(values, 0, tenant)) / len(values)


def test_another_tenants_windows_are_hits_and_ones_own_are_not():
    index, values = Index(10_000), hashes(300)
    add(index, A, values)
    hits = index.hits(values, 1000, B)
    assert [hit.at for hit in hits] == list(range(1000, 1300))
    assert {(hit.tenant, hit.kind) for hit in hits} == {(A, Kind.PROMPT)}
    assert [hit.hash for hit in hits] == values.tolist()
    assert index.hits(values, 0, A) == []
    assert index.hits(hashes(300, seed=1), 0, B) == []


def test_few_windows_are_looked_up_alike():
    index, values = Index(10_000), hashes(300)
    add(index, A, values[:150])
    few = [
        hit
        for at in range(0, 300, 3)
        for hit in index.hits_of_few(values[at : at + 3].tolist(), at, B)
    ]
    assert few == index.hits(values, 0, B)


def test_what_two_tenants_sent_is_nobodys():
    index, values = Index(10_000), hashes(300)
    add(index, A, values)
    add(index, B, values[:200])
    assert [hit.at for hit in index.hits(values, 0, C)] == list(range(200, 300))


def test_what_was_shared_stays_shared_when_its_first_holder_is_forgotten():
    index, values = Index(10_000), hashes(300)
    for tenant in (A, B, C):
        add(index, tenant, values)
    for seed in range(1, 11):
        add(index, D, hashes(960, seed=seed))
        assert index.hits(values, 0, 99) == []


def test_texts_leave_in_the_order_they_came():
    index = Index(1_000)
    first, second = hashes(400), hashes(400, seed=1)
    add(index, A, first)
    add(index, A, second)
    add(index, A, hashes(400, seed=2))
    assert share_found(index, first) == 0
    assert share_found(index, second) > 0.9


def test_what_is_sent_again_is_young_again_and_takes_no_room():
    index = Index(1_000)
    history, other = hashes(400), hashes(400, seed=1)
    add(index, A, history)
    add(index, A, other)
    for _ in range(20):
        add(index, A, history)
    assert share_found(index, other) > 0.9
    add(index, A, hashes(500, seed=2))
    assert share_found(index, history) > 0.9


def test_an_answer_that_quotes_its_prompt_leaves_it_a_prompt():
    index, values = Index(1_000), hashes(50)
    add(index, A, values)
    add(index, A, values, Kind.ANSWER)
    assert {hit.kind for hit in index.hits(values, 0, B)} == {Kind.PROMPT}
    add(index, A, hashes(50, seed=1), Kind.ANSWER)
    assert {hit.kind for hit in index.hits(hashes(50, seed=1), 0, B)} == {Kind.ANSWER}


def test_memory_is_fixed_and_most_of_the_capacity_is_found():
    capacity = 200_000
    index = Index(capacity)
    before = index.nbytes
    assert before / capacity < 16
    for seed in range(60):
        add(index, A, hashes(10_000, seed=seed))
    assert index.nbytes == before
    recent = [share_found(index, hashes(10_000, seed=seed)) for seed in range(41, 60)]
    assert min(recent) > 0.75  # of the oldest, whose buckets are the fullest
    assert np.mean(recent) > 0.93
    assert share_found(index, hashes(10_000, seed=35)) == 0


def test_many_tiny_texts_have_a_bound_too():
    index = Index(10_000)
    for seed in range(5_000):
        add(index, A, hashes(1, seed=seed))
    assert index.texts <= 1_024
    assert share_found(index, hashes(1, seed=4_999)) == 1
    assert share_found(index, hashes(1, seed=0)) == 0


def test_a_long_text_is_written_in_steps():
    assert add(Index(100_000), A, hashes(5 * BATCH)) == 5


def test_a_text_that_was_forgotten_while_it_was_written_costs_nothing():
    index = Index(1_000)
    slow = index.add(A, Kind.PROMPT, hashes(900))
    next(slow)
    for seed in range(1, 5):
        add(index, B, hashes(700, seed=seed))
    assert list(slow) == []
    add(index, B, hashes(200, seed=9))
    assert share_found(index, hashes(200, seed=9), tenant=A) > 0.9
    assert share_found(index, hashes(700, seed=4), tenant=A) > 0.7


@pytest.mark.parametrize("seed", range(3))
def test_numbers_of_texts_may_wrap(seed):
    index = Index(1_000)
    index._next = 2**23 - 2
    for text in range(5):
        add(index, A, hashes(100, seed=seed * 10 + text))
    assert all(share_found(index, hashes(100, seed=seed * 10 + text)) > 0.95 for text in range(5))
