"""Comparing counts: what is a difference, what follows, and that a margin is enough."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import calibration as c
from gateway.core.capacity import Seen, Snapshot
from gateway.types import AtLeast, Bounded, Counted, Unverifiable, WorkerFacts

TEXTS = (("text/a", 30, 30), ("text/b", 12, 12))
CHATS = (("chat/a", 20, 27), ("chat/b", 30, 37), ("chat/c", 50, 57))


def pairs(*counts):
    return [c.Pair(case, case.startswith("chat"), ours, theirs) for case, ours, theirs in counts]


def compared(*counts, **options):
    return c.compare(pairs(*counts), 5.0, **options)


def test_equal_counts_are_exact():
    found = compared(*TEXTS, ("chat/a", 20, 20))
    assert (found.state, found.compared, found.differences) == (c.State.EXACT, 3, ())
    assert (found.worst_under, found.at, found.credible) == (c.Shortfall(), 5.0, True)


def test_a_difference_is_told_by_name_and_numbers():
    found = compared(
        ("text/a", 30, 30), ("text/b", 10, 14), ("chat/a", 20, 15), ("chat/b", 9, None)
    )
    assert found.state is c.State.DIFFERS
    assert found.differences == (c.Difference("text/b", 10, 14), c.Difference("chat/a", 20, 15))
    assert (found.compared, found.unanswered) == (3, 1)
    assert found.worst_under == c.Shortfall(4, 4 / 14)


def test_an_unanswered_question_is_neither():
    assert compared(("text/a", 3, None)).state is c.State.UNANSWERED
    assert compared().state is c.State.UNANSWERED
    assert compared(("text/a", 3, 3), ("text/b", 3, None)).state is c.State.EXACT


def test_agreement_until_the_engine_fell_silent_proves_nothing_but_a_difference_does():
    assert compared(("text/a", 3, 3), broken_off=True).state is c.State.UNANSWERED
    assert compared(("text/a", 3, 4), broken_off=True).state is c.State.DIFFERS


def test_an_engine_that_counts_under_half_is_not_credible():
    assert not compared(("text/a", 30, 10), ("text/b", 12, 10)).credible
    assert compared(("text/a", 30, 15), ("text/b", 12, 6)).credible


# --- a constant offset ------------------------------------------------------------------------


def test_the_same_difference_of_every_chat_is_a_constant():
    found = compared(*TEXTS, *CHATS)
    assert (found.state, found.constant, found.offset) == (c.State.DIFFERS, 7, 0)


@pytest.mark.parametrize(
    "counts",
    [
        (*TEXTS, *CHATS[:2]),  # too few
        (*TEXTS, *CHATS, ("chat/d", 9, 9)),  # one agrees
        (*TEXTS, *CHATS, ("chat/d", 9, 17)),  # one by more
        (("text/a", 30, 37), *CHATS),  # a text differs
        TEXTS,
    ],
)
def test_what_is_no_constant(counts):
    found = compared(*counts, learn_offset=True)
    assert (found.constant, found.offset) == (0, 0)


def test_a_constant_is_learnt_only_where_allowed():
    learnt = compared(*TEXTS, *CHATS, learn_offset=True)
    assert (learnt.state, learnt.offset, learnt.differences) == (c.State.EXACT, 7, ())
    assert learnt.compared == 5
    broken = compared(*TEXTS, *CHATS, learn_offset=True, broken_off=True)
    assert (broken.state, broken.offset) == (c.State.DIFFERS, 0)


def test_a_constant_that_is_not_credible_is_not_learnt():
    far = [(f"chat/{n}", 100, 20) for n in range(4)]
    assert compared(*far, learn_offset=True).offset == 0


@pytest.mark.parametrize(
    ("length", "offset", "expected"),
    [
        (Counted((3, 9)), 7, Counted((10, 16))),
        (Counted((3, 9)), -5, Counted((0, 4))),
        (Bounded(9, 12), 7, Bounded(16, 19)),
        (AtLeast(9), 7, AtLeast(16)),
        (Unverifiable("image"), 7, Unverifiable("image")),
    ],
)
def test_an_offset_shifts_what_is_a_number(length, offset, expected):
    assert c.shifted(length, offset) == expected


# --- what holds after -------------------------------------------------------------------------

EXACT = compared(*TEXTS, ("chat/a", 20, 20))
DIFFERS = compared(*TEXTS, ("chat/a", 20, 27))
SILENT = compared(("text/a", 30, None))


@pytest.mark.parametrize("same_engine", [True, False])
def test_a_difference_outlives_silence_and_yields_to_exactness(same_engine):
    assert c.succeed(DIFFERS, SILENT, same_engine=same_engine) is DIFFERS
    assert c.succeed(DIFFERS, EXACT, same_engine=same_engine) is EXACT
    assert c.succeed(EXACT, DIFFERS, same_engine=same_engine) is DIFFERS


def test_a_difference_yields_only_to_a_comparison_of_its_samples():
    texts_only = compared(*TEXTS, ("chat/a", 20, None))
    assert texts_only.state is c.State.EXACT
    assert c.succeed(DIFFERS, texts_only, same_engine=False) is DIFFERS


def test_exactness_outlives_silence_of_the_same_engine_only():
    assert c.succeed(EXACT, SILENT, same_engine=True) is EXACT
    assert c.succeed(EXACT, SILENT, same_engine=False) is SILENT
    assert c.succeed(c.Calibration(), SILENT, same_engine=True) is SILENT


def test_identity_follows_processes_and_workers():
    def known(**workers):
        return c.identity(
            Snapshot(
                {
                    name: Seen((WorkerFacts(worker=name, engine="vllm", incarnation=word),), 0.0)
                    for name, word in workers.items()
                }
            )
        )

    assert known() == ()
    assert c.identity(Snapshot({"a": Seen(trouble="silent")})) == ()
    assert known(a="1") == known(a="1")
    assert len({known(a="1"), known(a="2"), known(a="1", b="1")}) == 3


# --- consequences -----------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", c.OnDifference)
def test_the_operator_says_what_follows_from_a_difference(wanted):
    assert c.consequence(DIFFERS, wanted) is wanted
    for harmless in (EXACT, SILENT, c.Calibration()):
        assert c.consequence(harmless, wanted) is c.OnDifference.IGNORE


def test_an_engine_that_is_not_credible_does_not_count():
    incredible = replace(DIFFERS, credible=False)
    assert c.consequence(incredible, c.OnDifference.ENGINE) is c.OnDifference.MARGIN
    assert c.consequence(incredible, c.OnDifference.REFUSE) is c.OnDifference.REFUSE


def test_a_constant_is_kept_free_as_it_is_and_anything_else_scaled():
    constant = compared(*TEXTS, *CHATS)
    assert c.margin(constant, 1000, 0) == 7
    assert c.margin(constant, 1000, 50) == 50
    growing = compared(("text/a", 90, 100), ("text/b", 12, 12))
    assert c.margin(growing, 1000, 0) == 100
    assert c.margin(growing, 1000, 500) == 500
    assert c.margin(growing, 1000, 5000) == 1000


def test_counting_too_many_needs_no_margin():
    assert c.margin(compared(("text/a", 100, 90)), 1000, 0) == 0


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=8),
    st.integers(1, 2_000_000),
    st.data(),
)
def test_with_the_margin_no_prompt_short_by_the_worst_share_passes_the_limit(counts, limit, data):
    found = compared(*((f"text/{n}", ours, theirs) for n, (ours, theirs) in enumerate(counts)))
    lowered = limit - c.margin(found, limit, 0)
    ours, theirs = data.draw(st.sampled_from(counts))
    longest = math.floor(lowered * max(1, theirs / ours) + 1e-6)
    assert longest <= limit
