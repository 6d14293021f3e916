"""Fingerprints whatever the text and however it is cut."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.fingerprint.index import Index, Kind
from gateway.core.fingerprint.matcher import Matcher
from gateway.core.fingerprint.normal import Normaliser, normal_slices
from gateway.core.fingerprint.shingles import SPAN, WINDOW, KnownText, Scheme, sample

SCHEME = Scheme(b"key")
NOTHING = KnownText(SCHEME, [])
PROSE = st.text(st.sampled_from('abcdefgh ,.\n"Zé語😀'), min_size=0, max_size=400)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def cut(text, places):
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[one:other] for one, other in pairwise(edges)]


def words(seed, length):
    rng = random.Random(seed)
    text = ""
    while len(text) < length:
        text += "".join(rng.choices(LETTERS, k=rng.randrange(2, 9))) + " "
    return text[:length]


def index_of(text, tenant=1):
    index = Index(20_000)
    for _ in index.add(tenant, Kind.PROMPT, sample(SCHEME, [text])):
        pass
    return index


def matched(index, pieces):
    matcher = Matcher(SCHEME, index, 2)
    for piece in pieces:
        matcher.feed("content", piece)
        if matcher.unsettled:
            matcher.settle(NOTHING)
    matcher.end()
    return matcher


@given(PROSE, st.lists(st.integers(0, 500), max_size=30))
def test_normal_form_does_not_depend_on_cuts(text, places):
    whole, pieces = Normaliser(), Normaliser()
    assert whole.feed(text) == b"".join(map(pieces.feed, cut(text, places)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 400), st.lists(st.integers(0, 2_000), max_size=80))
def test_any_cut_of_the_stream_gives_the_same_verdict(seed, length, places):
    secret = words(seed, 800)
    answer = words(seed + 1, 150) + secret[100 : 100 + length] + words(seed + 2, 150)
    index = index_of(secret)
    whole, pieces = matched(index, [answer]), matched(index, cut(answer, places))
    by_byte = matched(index, list(answer))
    assert whole.longest == pieces.longest == by_byte.longest
    assert whole.strength is pieces.strength is by_byte.strength


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 600), st.integers(0, 300), st.integers(0, 30))
def test_a_planted_run_is_always_found(seed, at, before, more):
    """WINDOW + SPAN - 1 bytes of normal text are enough, wherever they stand in both texts."""
    secret = words(seed, 900)
    planted = secret[at : at + WINDOW + SPAN + 1 + more].strip()
    answer = f"{words(seed + 1, before)} {planted} {words(seed + 2, 80)}"
    shared = b"".join(normal_slices([planted])).strip()
    if len(shared) >= WINDOW + SPAN - 1:
        assert matched(index_of(secret), [answer]).longest is not None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 300))
def test_texts_that_share_nothing_have_no_finding(seed, length):
    answer = words(seed + 77_777, 2_000 + length)
    assert matched(index_of(words(seed, 3_000)), [answer]).longest is None
