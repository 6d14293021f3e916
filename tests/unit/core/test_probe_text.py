from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lexicon import lexicon
from gateway.core.probe_text import ASK, SLOT, Draft, Guess, Trace, first_guess, traces

SEED = b"a seed of a run"
MINE, YOURS = Draft(SEED, "P2.2"), Draft(SEED, "P1.1")
OWN, OTHER = MINE.words(300), YOURS.words(300)


def said(numbers) -> str:
    return lexicon().phrase(numbers)


def test_a_text_is_words_tags_padding_and_the_question():
    text = YOURS.text(2 * SLOT, 3)
    assert text.endswith(" a a a" + ASK)
    tags = [line.removeprefix("[tag: ") for line in text.splitlines() if line.startswith("[tag: ")]
    assert tags == [said(OTHER[end - 8 : end]) + "]" for end in (SLOT, 2 * SLOT)]


def test_streams_differ_by_label_and_seed_and_grow_at_the_end():
    assert OWN[:50].tolist() == MINE.words(50).tolist()
    assert OWN.tolist() != OTHER.tolist()
    assert Draft(b"another", MINE.label).words(300).tolist() != OWN.tolist()
    assert OWN.nbytes == 600  # a prompt of a million tokens costs two megabytes to remember


def test_a_foreign_tag_is_found_in_any_dress():
    tag = said(OTHER[SLOT - 8 : SLOT])
    answer = "Tags: **" + tag.upper().replace(" ", "**\n- **") + "**"
    assert traces(answer, OWN, {"P1.1": OTHER}) == (Trace("P1.1", 4, 1),)


def test_words_between_tags_count_from_five_on():
    for length, expected in ((4, ()), (5, (Trace("P1.1", 1, 0),))):
        answer = f"so {said(OTHER[10 : 10 + length])} it is"
        assert traces(answer, OWN, {"P1.1": OTHER}) == expected


def test_own_words_are_nobody_elses():
    assert traces(said(OWN), OWN, {"P1.1": OTHER, "P2.9": OWN}) == ()
    assert traces("", OWN, {"P1.1": OTHER}) == ()


@given(st.integers(0, 280), st.integers(5, 20))
def test_every_run_of_five_or_more_is_seen(start, length):
    run = OTHER[start : start + length]
    [trace] = traces(said(OWN[:30]) + " and " + said(run), OWN, {"P1.1": OTHER})
    assert trace.runs == len(run) - 4


@given(st.integers(100, 5000), st.integers(0, 40), st.integers(1, 3))
def test_guesses_reach_the_length(wanted, constant, per_word):
    def tokens(guess: Guess) -> int:
        return constant + per_word * guess.words + guess.pad

    sample = wanted // 2
    guess = first_guess(wanted, sample, tokens(Guess(sample)))
    for _ in range(16):
        missing = wanted - tokens(guess)
        if not missing:
            break
        better = guess.better(missing)
        assert better is not None
        guess = better
    assert tokens(guess) == wanted
    assert tokens(Guess(guess.words)) >= wanted * 0.5  # most of it is words


def test_a_guess_gives_up_below_no_words():
    assert Guess(3).better(-5) is None
