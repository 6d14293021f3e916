"""Short secrets that are no window long."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gateway.core.fingerprint.atoms import AtomMatcher, atoms
from gateway.core.fingerprint.index import Index, Kind

KEY = b"k" * 32


def found(text, *, like):
    return bool(np.intersect1d(atoms(KEY, [text]), atoms(KEY, [like])).size)


@pytest.mark.parametrize(
    ("text", "like"),
    [
        ("The VIN is 1HGCM82633A004352.", "1hgcm82633a004352"),
        ('{"mail": "jane.doe@example.com"}', "Jane.Doe@example.com"),
        ("pay to DE89 3704 0044 0532 0130 00, thanks", "DE89370400440532013000"),
        ("token=sk-proj-a8F3kL9x2Qw0;", "sk-proj-a8F3kL9x2Qw0"),
    ],
)
def test_an_atom_is_known_in_other_surroundings(text, like):
    assert found(text, like=like)


@pytest.mark.parametrize(
    "text",
    ["ordinary words only", "internationalisation", "170000000000", "v1.2.3", "a@b", "x" * 500],
)
def test_what_is_none(text):
    assert not len(atoms(KEY, [text]))


def test_another_key_knows_nothing():
    secret = ["1HGCM82633A004352"]
    assert not np.intersect1d(atoms(KEY, secret), atoms(b"other", secret)).size


def test_an_atom_across_two_parts_of_a_long_text_is_found():
    secret = "1HGCM82633A004352"
    for shift in range(0, 40, 7):
        text = "word " * 3270 + "x" * shift + f" {secret} " + "word " * 100
        assert found(text, like=secret)


def index_with(text, tenant=1):
    index = Index(1_000)
    for _ in index.add(tenant, Kind.PROMPT, atoms(KEY, [text])):
        pass
    return index


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_an_answers_atoms_are_found_however_it_is_cut(step):
    index = index_with("VIN 1HGCM82633A004352, key sk-proj-a8F3kL9x2Qw0")
    answer = (
        "Sure. " * 200 + "The VIN is 1HGCM82633A004352. " + "Right. " * 90 + "sk-proj-a8F3kL9x2Qw0"
    )
    matcher = AtomMatcher(KEY, index, tenant=2)
    for start in range(0, len(answer), step):
        matcher.feed("content", answer[start : start + step])
    assert len(matcher.end()) == 2


def test_ones_own_atoms_are_none():
    matcher = AtomMatcher(KEY, index_with("1HGCM82633A004352", tenant=2), tenant=2)
    matcher.feed("content", "It is 1HGCM82633A004352.")
    assert len(matcher.end()) == 0


def test_a_crafted_text_takes_no_longer_than_others():
    for text in ("a1" * 200_000, "a1@" * 130_000, "AA00 " * 80_000, "AA00 AAAA AAAA " * 27_000):
        began = time.process_time()
        atoms(KEY, [text])
        assert time.process_time() - began < 2
