"""Runs of another tenant's text in an answer that streams."""

from __future__ import annotations

import pytest

from gateway.core.fingerprint.index import Index, Kind
from gateway.core.fingerprint.matcher import MOST_CHANNELS, Matcher
from gateway.core.fingerprint.shingles import SPAN, WINDOW, KnownText, Scheme, sample
from gateway.core.fingerprint.verdict import Strength, Thresholds

SCHEME = Scheme(b"key")
A, B, C = 1, 2, 3
SECRET = (
    "The patient in room seven asked for the results of the second examination, which the clinic "
    "at the harbour had sent to the wrong address in March; nobody had noticed until the insurer "
    "wrote to her brother instead, and quoted the whole of the report in its letter. "
)
PLAIN = "Certainly! Here is a short summary of what you asked for, in three steps. "
NOTHING = KnownText(SCHEME, [])


def index_of(*texts, kind=Kind.PROMPT):
    index = Index(100_000)
    for tenant, text in texts:
        for _ in index.add(tenant, kind, sample(SCHEME, [text])):
            pass
    return index


def matched(index, answer, *, step=5, own=NOTHING, tenant=B, public=None):
    """The matcher after an answer in pieces of ``step`` characters."""
    matcher = Matcher(SCHEME, index, tenant, public)
    for start in range(0, len(answer), step):
        matcher.feed("content", answer[start : start + step])
        if matcher.unsettled:
            matcher.settle(own)
    matcher.end()
    return matcher


def test_another_tenants_text_is_found():
    matcher = matched(index_of((A, SECRET)), PLAIN + SECRET + PLAIN)
    assert matcher.strength is Strength.STRONG
    assert matcher.longest.tenant == A
    assert 200 < matcher.longest.length <= len(SECRET)


@pytest.mark.parametrize("dressed", [SECRET.upper(), SECRET.replace(" ", "\n> **"), f"`{SECRET}`"])
def test_markup_and_case_hide_nothing(dressed):
    assert matched(index_of((A, SECRET)), dressed).strength is Strength.STRONG


def test_plain_answers_are_clean():
    matcher = matched(index_of((A, SECRET)), PLAIN * 40)
    assert matcher.strength is Strength.NONE
    assert matcher.longest is None


def test_ones_own_text_is_no_leak():
    assert matched(index_of((B, SECRET)), SECRET).longest is None


def test_a_quotation_of_the_own_prompt_is_no_leak_even_before_it_is_indexed():
    own = KnownText(SCHEME, ["Please translate: " + SECRET])
    assert matched(index_of((A, SECRET)), SECRET, own=own).longest is None


def test_what_two_tenants_sent_is_no_leak_to_a_third():
    assert matched(index_of((A, SECRET), (C, SECRET)), SECRET).longest is None


def test_public_text_is_no_leak():
    public = KnownText(SCHEME, [SECRET])
    assert matched(index_of((A, SECRET)), SECRET, public=public).longest is None


def test_another_tenants_answer_needs_a_longer_run():
    index = index_of((A, SECRET), kind=Kind.ANSWER)
    assert matched(index, SECRET[:200]).strength is Strength.NONE
    assert (
        matched(index, SECRET).strength is Strength.NONE
    )  # 265 bytes, of which windows cover less
    twice = index_of((A, SECRET + PLAIN), kind=Kind.ANSWER)
    assert matched(twice, SECRET + PLAIN).strength is Strength.STRONG


def test_channels_are_apart():
    matcher = Matcher(SCHEME, index_of((A, SECRET)), B)
    for start in range(0, len(SECRET), 8):
        matcher.feed(("content", start % 16), SECRET[start : start + 8])
    assert not matcher.unsettled
    assert matcher.strength is Strength.NONE


def test_the_stream_is_held_from_the_first_window_on_until_it_is_decided():
    matcher = Matcher(SCHEME, index_of((A, SECRET)), B)
    fed = 0
    for letter in SECRET:
        matcher.feed("content", letter)
        fed += 1
        if matcher.unsettled:
            assert matcher.holding
            matcher.settle(NOTHING)
        if matcher.holding:
            break
    assert WINDOW <= fed <= WINDOW + SPAN + 5
    for letter in PLAIN * 2:
        matcher.feed("content", letter)
    assert not matcher.holding
    assert matcher.strength is Strength.NONE


def test_a_strong_finding_ends_the_holding():
    matcher = matched(index_of((A, SECRET)), SECRET)
    assert matcher.strength is Strength.STRONG
    assert not matcher.holding


def test_short_copies_are_weak_or_nothing():
    index = index_of((A, SECRET))
    strengths = {
        length: matched(index, PLAIN + SECRET[20 : 20 + length] + " Then " + PLAIN).strength
        for length in (40, 105, 200)
    }
    assert strengths[40] is Strength.NONE
    assert strengths[105] < Strength.STRONG
    assert strengths[200] is Strength.STRONG


def test_two_short_copies_from_one_tenant_are_strong():
    text = SECRET + PLAIN + SECRET.replace("patient", "claimant").replace("March", "June")
    index = index_of((A, text))
    limits = Thresholds(weak=80, pair=80, strong=10_000)
    matcher = Matcher(SCHEME, index, B, limits=limits)
    matcher.feed("content", SECRET[:140] + PLAIN + PLAIN + SECRET[150:260])
    matcher.settle(NOTHING)
    assert matcher.strength is Strength.STRONG


def test_channels_beyond_the_bound_are_not_watched_and_it_says_so():
    matcher = Matcher(SCHEME, index_of((A, SECRET)), B)
    for channel in range(MOST_CHANNELS):
        matcher.feed(channel, "x")
    assert matcher.complete
    matcher.finish(0)
    matcher.feed("one more", "x")
    assert matcher.complete
    matcher.feed("too many", "x")
    assert not matcher.complete


def test_a_finished_channel_keeps_its_runs():
    matcher = Matcher(SCHEME, index_of((A, SECRET)), B)
    for part in range(3):
        matcher.feed(part, SECRET)
        matcher.finish(part)
    matcher.settle(NOTHING)
    assert matcher.strength is Strength.STRONG
    assert not matcher.holding
    matcher.finish("never fed")
    assert matcher.longest.length > 200
