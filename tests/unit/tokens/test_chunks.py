from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.chunks import CHUNK_CHARS, WINDOW, chunks, could_be_cut

PLACES = [
    ("ab\ncd", 1, ["ab\n", "cd"]),
    ("ab\n\ncd", 1, ["ab\n\n", "cd"]),
    ("ab\n cd", 1, ["ab\n cd"]),  # white space after the newline may belong to it
    ("ab\n/cd", 1, ["ab\n/cd"]),  # o200k takes the slash into the run before
    ("ab\n中", 1, ["ab\n", "中"]),
    ("ab cd", 1, ["ab", " cd"]),
    ("ab  cd", 1, ["ab  cd"]),
    ("a, b", 1, ["a, b"]),
    ("é x", 1, ["é x"]),
    ("a é", 1, ["a é"]),
]


@pytest.mark.parametrize(("text", "size", "parts"), PLACES)
def test_only_safe_places_are_cut(text: str, size: int, parts: list[str]) -> None:
    assert list(chunks(text, size)) == parts


def test_nothing_is_lost_and_parts_have_the_size() -> None:
    text = "some words and\nlines " * 20_000
    parts = list(chunks(text))
    assert "".join(parts) == text
    assert len(parts) > 10
    assert all(CHUNK_CHARS <= len(part) < CHUNK_CHARS + 40 for part in parts[:-1])


@pytest.mark.parametrize("text", ["", "a", "a" * 200_000])
def test_text_without_a_place_comes_whole(text: str) -> None:
    assert list(chunks(text)) == [text]


def test_place_at_the_edge_of_a_search_window_is_seen() -> None:
    for shift in range(-3, 4):
        head = "x" * (CHUNK_CHARS + WINDOW + shift)
        assert list(chunks(head + " tail")) == [head, " tail"]
        assert list(chunks(head + "\ntail")) == [head + "\n", "tail"]


@given(st.text("aZ9é中 \n\r\t/,_", min_size=1, max_size=60), st.integers(1, 8))
def test_the_first_safe_place_is_taken(text: str, size: int) -> None:
    parts, start = [], 0
    for at in range(len(text) - 1):
        cut = _cut_at(text, at)
        if cut is not None and at - start >= size:
            parts.append(text[start:cut])
            start = cut
    assert list(chunks(text, size)) == [*parts, text[start:]]


def _cut_at(text: str, at: int) -> int | None:
    """Where the text may be cut because of the character at this place."""
    before, here, after = text[max(0, at - 1) : at], text[at], text[at + 1]
    if here == "\n" and not (after.isspace() or after == "/"):
        return at + 1
    words = before.isascii() and before.isalnum() and after.isascii() and after.isalpha()
    return at if here == " " and words else None


def test_looking_for_a_place_does_not_hold_the_interpreter() -> None:
    started = time.process_time()
    assert len(list(chunks("QUJD" * 1_000_000))) == 1
    assert time.process_time() - started < 1.0  # measured: 2 ms; one slow regex took 300 ms


@pytest.mark.parametrize("token", ["a b", "x\ny", "A ", "word \n"])
def test_added_tokens_a_cut_could_fall_into(token: str) -> None:
    assert could_be_cut(token)


@pytest.mark.parametrize("token", ["<|im_end|>", "\n\n", " ", "<a  b>", "\n/", "[INST]"])
def test_added_tokens_no_cut_can_fall_into(token: str) -> None:
    assert not could_be_cut(token)
