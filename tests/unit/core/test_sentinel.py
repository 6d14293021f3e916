"""Sentinels as codes: who can write them, who can read them, for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sentinel import CLOCK_SKEW, Partial, Sentinels
from sentinels import CLUSTER, DAY, NOW, SECRET

OTHER = b"another secret of this cluster"
NUMBER = st.integers(0, 4095)


def cluster(*secrets, tenants=("ann", "bob")):
    return Sentinels(secrets or [SECRET], DAY, 3 * DAY, tenants)


def test_any_replica_with_the_secret_reads_what_another_wrote():
    numbers = cluster().numbers("bob", NOW)

    seen = cluster().read(numbers, "ann", NOW)

    assert seen is not None
    assert seen.counts
    assert cluster().owners(seen, NOW) == ("bob",)


def test_ones_own_sentinel_does_not_count():
    seen = CLUSTER.read(CLUSTER.numbers("ann", NOW), "ann", NOW)

    assert seen is not None
    assert seen.own
    assert not seen.counts


def test_another_secret_reads_nothing():
    assert cluster(OTHER).read(cluster().numbers("bob", NOW), "ann", NOW) is None


@given(place=st.integers(0, 7), number=NUMBER)
def test_any_other_word_anywhere_breaks_it(place, number):
    numbers = list(CLUSTER.numbers("bob", NOW))
    changed = number != numbers[place]
    numbers[place] = number

    assert (CLUSTER.read(tuple(numbers), "ann", NOW) is None) == changed


@given(st.tuples(*[NUMBER] * 8))
def test_made_up_words_are_no_sentinel(numbers):
    assert CLUSTER.read(numbers, "ann", NOW) is None


def test_a_new_secret_signs_and_the_old_one_is_still_read():
    rotated = cluster(OTHER, SECRET)

    assert rotated.numbers("bob", NOW) == cluster(OTHER).numbers("bob", NOW)
    old = rotated.read(cluster().numbers("bob", NOW), "ann", NOW)
    assert old is not None
    assert rotated.owners(old, NOW) == ("bob",)
    assert cluster(OTHER).read(cluster().numbers("bob", NOW), "ann", NOW) is None


@given(now=st.floats(DAY * 10, 5e9), tenant=st.text(min_size=1, max_size=8))
def test_a_phrase_lasts_one_epoch_and_counts_through_its_lifetime(now, tenant):
    numbers = CLUSTER.numbers(tenant, now)
    later = now + DAY

    assert CLUSTER.numbers(tenant, later) != numbers
    for moment, dead in (
        (now - CLOCK_SKEW / 2, False),
        (now + 3 * DAY, False),
        (now + 7 * DAY, True),
    ):
        seen = CLUSTER.read(numbers, "somebody else", moment)
        assert seen is not None
        assert seen.in_date is not dead
        assert dead or numbers[0] in CLUSTER.first_words(moment)


def test_epochs_wrap_around_their_sixteen_bits():
    now = 65536 * DAY - 10.0
    numbers = CLUSTER.numbers("bob", now)

    for moment in (now, now + DAY):
        seen = CLUSTER.read(numbers, "ann", moment)
        assert seen is not None
        assert seen.counts
        assert numbers[0] in CLUSTER.first_words(moment)


def test_tenants_do_not_all_change_at_once():
    many = [f"tenant-{number}" for number in range(200)]
    changed = [CLUSTER.numbers(name, NOW) != CLUSTER.numbers(name, NOW + DAY / 4) for name in many]

    assert 25 < sum(changed) < 75  # a quarter of them in a quarter of an epoch


def test_first_words_are_few():
    assert len(cluster(OTHER, SECRET).first_words(NOW)) <= 4


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("length", [5, 6, 7])
def test_five_words_in_a_row_are_a_partial_sentinel(start, length):
    piece = CLUSTER.numbers("bob", NOW)[start : start + length]
    run = (1, *piece, 2)

    assert CLUSTER.partial(run, "ann", NOW) == Partial("bob", len(piece))
    assert CLUSTER.partial(run, "bob", NOW) is None


def test_four_words_are_not():
    numbers = CLUSTER.numbers("bob", NOW)

    assert CLUSTER.partial((*numbers[:4], 7, *numbers[4:]), "ann", NOW) is None


@given(st.lists(NUMBER, min_size=5, max_size=12))
def test_a_run_of_other_words_is_no_partial_one(run):
    assert CLUSTER.partial(tuple(run), "ann", NOW) is None


def test_a_removed_tenants_sentinel_still_counts():
    seen = CLUSTER.read(CLUSTER.numbers("gone", NOW), "ann", NOW)

    assert seen is not None
    assert seen.counts
    assert CLUSTER.owners(seen, NOW) == ()
