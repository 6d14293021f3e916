"""Hashes of windows, and the sample that is kept."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gateway.core.fingerprint.normal import normal_slices
from gateway.core.fingerprint.shingles import (
    OVERLAP,
    SPAN,
    WINDOW,
    KnownText,
    Scheme,
    sample,
    winnow,
)

SCHEME = Scheme(b"key")


def letters(count, seed=0):
    return "".join(random.Random(seed).choices("abcdefgh ", k=count))


def test_every_window_is_hashed_by_its_bytes_alone():
    data = letters(500).encode()
    hashes = SCHEME.hashes(data)
    assert len(hashes) == 500 - WINDOW + 1
    shifted = SCHEME.hashes(b"something else " + data)
    assert (shifted[-len(hashes) :] == hashes).all()
    assert len(np.unique(hashes)) == len(hashes)


def test_a_text_without_a_whole_window_has_none():
    assert len(SCHEME.hashes(b"a" * (WINDOW - 1))) == 0
    assert len(sample(SCHEME, ["short"])) == 0
    assert not KnownText(SCHEME, ["short"]).holds(SCHEME.hashes(b"a" * WINDOW)).any()


def test_byte_by_byte_gives_the_same_hashes():
    data = letters(300).encode()
    state = SCHEME.state(data[:WINDOW])
    _, hashes = SCHEME.roll(state, data[:-WINDOW], data[WINDOW:])
    assert hashes == SCHEME.hashes(data)[1:].tolist()


def test_the_key_changes_every_hash():
    data = letters(2000).encode()
    assert not np.intersect1d(SCHEME.hashes(data), Scheme(b"other").hashes(data)).size


@pytest.mark.parametrize("hashes", [[5, 4, 3, 2, 1], [1, 1, 1], [7], []])
def test_a_text_shorter_than_a_span_keeps_its_last_least(hashes):
    kept = winnow(np.array(hashes, np.uint64) << np.uint64(32))
    last_least = max((i for i, h in enumerate(hashes) if h == min(hashes)), default=None)
    assert kept.tolist() == ([] if last_least is None else [last_least])


def test_winnowing_is_what_its_definition_says():
    hashes = np.random.default_rng(1).integers(0, 2**63, 3000, np.uint64)
    expected = set()
    for start in range(len(hashes) - SPAN + 1):
        span = hashes[start : start + SPAN]
        expected.add(start + SPAN - 1 - int(np.argmin(span[::-1])))
    assert set(winnow(hashes).tolist()) == expected


def test_slices_make_no_difference():
    text = letters(120_000)
    normal = b"".join(normal_slices([text]))
    whole = np.concatenate(
        [
            SCHEME.hashes(normal[at : at + 60_000 + WINDOW - 1])
            for at in range(0, len(normal), 60_000)
        ]
    )
    whole = whole[: len(normal) - WINDOW + 1]
    assert set(sample(SCHEME, [text]).tolist()) == set(whole[winnow(whole)].tolist())


def test_the_density_is_that_of_winnowing():
    text = letters(400_000)
    size = sum(map(len, normal_slices([text])))
    assert len(sample(SCHEME, [text])) / size == pytest.approx(2 / (SPAN + 1), rel=0.03)


def test_a_shared_stretch_shares_a_kept_hash_whatever_is_around_it():
    rng = random.Random(3)
    for trial in range(200):
        shared = letters(WINDOW + SPAN - 1, seed=trial).replace(" ", "x")
        one = sample(SCHEME, [letters(rng.randrange(300), trial) + shared + letters(90, -trial)])
        everywhere = SCHEME.hashes(("k" * rng.randrange(99) + shared + "m" * 50).encode())
        assert np.intersect1d(one, everywhere).size


def test_known_text_holds_every_window_of_itself_and_no_other():
    text = letters(100_000)
    known = KnownText(SCHEME, [text[:40_000], text[40_000:]])
    inside = b"".join(normal_slices([text[500:9_000]])).rstrip()
    assert known.holds(SCHEME.hashes(inside)).all()
    assert not known.holds(SCHEME.hashes(letters(9_000, seed=9).encode())).any()


def test_slices_overlap_by_what_a_span_covers():
    assert OVERLAP == WINDOW + SPAN - 2
