"""Scanning text: the normal form, places, and what an open run holds."""

from __future__ import annotations

import pytest

from gateway.core.lexicon import lexicon
from gateway.core.sentinel_scan import LONGEST_GAP
from sentinels import CLUSTER, NOW, phrase, watch

BOB = phrase("bob")
WORDS = BOB.split()


def scan(*pieces):
    scanner = watch().scanner()
    found = [each for piece in pieces for each in scanner.feed(piece)]
    return scanner, found


@pytest.mark.parametrize(
    "text",
    [
        BOB,
        BOB.upper(),
        "x " + "\n> ".join(f"**{word}**," for word in WORDS),
        " ".join(WORDS[:3]) + "\r\n\r\n- " + " — ".join(WORDS[3:]),
        '{"q":"a\\n' + "\\n".join(WORDS) + '"}',
        '{"q":"\\u2014' + "\\u00a0".join(WORDS) + '"}',
        '{\\"q\\":\\"' + "\\\\n".join(WORDS) + '\\"}',
        "".join(chr(ord(letter) + 0xFEE0) if letter != " " else "　" for letter in BOB),
        "_".join(WORDS),
        "1".join(WORDS),
        f"({BOB})",
        BOB.replace(" ", " … "),
    ],
)
def test_it_is_found_in_any_dress(text):
    _, found = scan(text)

    assert [each.sighting.numbers for each in found] == [CLUSTER.numbers("bob", NOW)]


@pytest.mark.parametrize(
    "text",
    [
        "x" + BOB,
        BOB.replace(" ", ""),
        " ".join([*WORDS[:4], "and", *WORDS[4:]]),
        " ".join(WORDS[:4]) + "." * (LONGEST_GAP + 1) + " ".join(WORDS[4:]),
        " ".join(WORDS[:4]) + " 中 " + " ".join(WORDS[4:]),
        " ".join(reversed(WORDS)),
    ],
)
def test_it_is_not_found_where_it_is_not(text):
    assert scan(text)[1] == []


def test_places_are_those_of_the_text_as_it_came():
    text = "ﬁrst ßtraße 𝐱 " + BOB + "!"
    begin = text.index(WORDS[0])

    for cut in range(len(text)):
        _, found = scan(text[:cut], text[cut:])
        assert [(each.start, each.end) for each in found] == [(begin, len(text) - 1)]


def test_an_eighth_word_is_enough_before_it_ends():
    assert len(scan(BOB)[1]) == 1
    assert len(scan(BOB + "ness")[1]) == 0  # in one piece the word is another


def test_a_list_word_that_begins_no_sentinel_in_date_opens_nothing():
    starts = CLUSTER.first_words(NOW)
    ordinary = next(word for number, word in enumerate(lexicon().words) if number not in starts)

    assert scan(f"a {ordinary}")[0].open_from is None
    assert scan(f"a {ordinary} {ordinary} ")[0].open_from is None


def test_a_beginning_opens_and_another_word_closes():
    scanner, _ = scan("some ", WORDS[0])
    assert scanner.open_from == 5

    scanner.feed(" " + WORDS[1][:2])
    assert scanner.open_from == 5

    scanner.feed("zzz")
    assert scanner.open_from is None


def test_the_first_word_that_goes_on_is_another_word():
    scanner, _ = scan(WORDS[0])
    scanner.feed("qqq")

    assert scanner.open_from is None


def test_a_long_gap_closes():
    scanner, _ = scan(WORDS[0] + " ")
    scanner.feed("." * LONGEST_GAP)

    assert scanner.open_from is None


def test_first_words_for_ever_hold_no_more_than_seven():
    scanner = watch().scanner()
    for _ in range(1000):
        scanner.feed(WORDS[0] + " ")

    assert scanner.end - scanner.open_from <= 8 * (len(WORDS[0]) + 1)


def test_runs_of_five_words_are_kept_for_later():
    scanner, found = scan("x " + " ".join(WORDS[1:7]) + " y")

    assert found == []
    assert scanner.close() == (CLUSTER.numbers("bob", NOW)[1:7],)


def test_a_long_run_is_kept_in_overlapping_windows():
    numbers = list(range(200, 240))
    scanner, _ = scan(lexicon().phrase(numbers))
    runs = scanner.close()

    windows = {run[at : at + 5] for run in runs for at in range(len(run) - 4)}
    assert windows == {tuple(numbers[at : at + 5]) for at in range(36)}
