"""The order of backends: least work first, or by their score within the bound."""

from __future__ import annotations

from collections import Counter
from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.choice import Load, affine_first, least_first, seed, work

WORK = st.lists(st.integers(0, 10**6), min_size=1, max_size=40)
KEY = st.integers(1, 2**64 - 1)


def seeds(count):
    return [seed(f"backend-{number}") for number in range(count)]


def test_work_is_prompts_to_prefill_and_answers_at_their_weight():
    assert work([Load(1000, 3), Load(0, 1), Load()], 256) == [1768, 256, 0]
    assert work([Load(1000, 3)], 0) == [1000]


@given(WORK, st.integers(0, 10**9))
def test_every_backend_once_the_least_loaded_first(loads, turn):
    order = list(least_first(loads, turn))
    assert sorted(order) == list(range(len(loads)))
    assert [loads[at] for at in order] == sorted(loads)


def test_idle_backends_take_turns():
    first = [next(least_first([0, 0, 0], turn)) for turn in range(6)]
    assert first == [0, 1, 2, 0, 1, 2]


@given(WORK, KEY, st.integers(0, 10**6), st.floats(1.0, 4.0))
def test_affinity_offers_every_backend_once_and_the_first_is_within_the_bound(
    loads, key, tokens, factor
):
    order = affine_first(key, seeds(len(loads)), loads, tokens, factor)
    assert sorted(order) == list(range(len(loads)))
    assert loads[order[0]] < factor * (sum(loads) + max(1, tokens)) / len(loads)


@given(KEY, st.integers(2, 20))
def test_without_load_the_order_is_the_keys_and_a_loss_moves_only_what_was_there(key, count):
    all_of_them = seeds(count)
    order = affine_first(key, all_of_them, [0] * count, 1, 1.25)
    gone = order[0]
    left = [each for at, each in enumerate(all_of_them) if at != gone]
    names = [at for at in range(count) if at != gone]
    after = affine_first(key, left, [0] * len(left), 1, 1.25)
    assert [names[at] for at in after] == order[1:]


def test_keys_spread_evenly():
    count, keys = 10, 20_000
    chosen = Counter(
        affine_first(key * 0x9E3779B97F4A7C15 % 2**64, seeds(count), [0] * count, 1, 1.25)[0]
        for key in range(1, keys)
    )
    share = keys / count
    assert all(0.9 * share < chosen[at] < 1.1 * share for at in range(count))


def test_one_hot_key_overloads_nobody():
    count, tokens, factor = 8, 1000, 1.25
    loads = [0] * count
    for _ in range(400):  # nothing ends: the worst case
        at = affine_first(12345, seeds(count), loads, tokens, factor)[0]
        loads[at] += tokens
        assert max(loads) <= factor * mean(loads) + tokens * (1 + factor / count)
    assert sum(each > 0 for each in loads) >= count / factor


def test_a_backends_number_does_not_depend_on_the_process():
    assert seed("a") == 0x40F89E395B66422F
