from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.tokens.anchors import LOOK, Cutter, apart, search_for, usable_tokens

IM = ["<|im_start|>", "<|im_end|>"]


def cut(text: str, tokens: list[str] = IM, smallest: int = 1) -> list[str]:
    return list(Cutter(search_for(tokens), None, smallest).pieces(text))


def token(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, "normalized": False, **flags}


def test_pieces_begin_at_added_tokens() -> None:
    text = "a<|im_start|>b<|im_end|>\n<|im_start|><|im_end|>"
    assert cut(text) == ["a", "<|im_start|>b", "<|im_end|>\n", "<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize("text", ["", "a", "<|im_end|>", "<|im_", "<" * 99])
def test_text_without_an_inner_token_is_one_piece(text: str) -> None:
    assert cut(text) == [text]


def test_tokens_of_different_beginnings_are_looked_for_too() -> None:
    assert cut("a[INST]b<s>c" + "d" * LOOK + "[INST]", ["[INST]", "<s>"]) == [
        "a", "[INST]b", "<s>c" + "d" * LOOK, "[INST]"
    ]  # fmt: skip


def test_short_pieces_are_joined_and_a_long_one_ends_at_its_end() -> None:
    short, long = "<|im_end|>x", "<|im_start|>" + "y" * 90
    pieces = cut(short * 3 + long + short + long, smallest=50)
    assert pieces == [short * 3 + long, short + long]


def test_pieces_are_cut_further_at_safe_places() -> None:
    one = Cutter(search_for(IM), chunk_chars=4, smallest=1)
    assert list(one.pieces("ab cd ef<|im_end|>gh")) == ["ab cd", " ef", "<|im_end|>gh"]


@pytest.mark.parametrize("shift", range(-12, 3))
def test_a_token_at_the_edge_of_a_search_window_is_seen(shift: int) -> None:
    head = "<" * (LOOK + 1 + shift)
    assert cut(head + "<|im_end|>") == [head, "<|im_end|>"]


@pytest.mark.parametrize(
    ("tokens", "left"),
    [
        (["ab", "bc", "x"], []),  # "abc": which one is found depends on where one looks from
        (["<a>", "<a>b", "<c>"], ["<c>"]),
        (["aa", "<c>"], ["<c>"]),  # "aaa" overlaps itself
        (["  ", "   ", "<c>"], ["<c>"]),
        (["<c>", "<d>"], ["<c>", "<d>"]),
        (["<c>", "<" + "d" * 99 + ">"], ["<c>"]),
    ],
)
def test_tokens_that_others_can_overlap_are_no_anchors(tokens: list[str], left: list[str]) -> None:
    assert apart(tokens) == left


def test_tokens_that_look_at_their_neighbours_are_no_anchors() -> None:
    tokens = [token("<a>"), token("<b>", lstrip=True), token("<c>", rstrip=True)]
    assert usable_tokens(tokens, normalises=True) == ["<a>"]
    assert usable_tokens([*tokens, token("<d>", single_word=True)], normalises=False) == []


def test_tokens_looked_for_after_normalising_are_no_anchors() -> None:
    """``<a>`` and a stroke compose to one character under NFC: it is no token then."""
    tokens = [token("<a>"), token("<b>") | {"normalized": True}]
    assert usable_tokens(tokens, normalises=True) == ["<a>"]
    assert usable_tokens(tokens, normalises=False) == ["<a>", "<b>"]


def test_a_token_that_is_no_anchor_still_keeps_others_from_being_one() -> None:
    tokens = [token("<a>"), token(">x", lstrip=True)]
    assert usable_tokens(tokens, normalises=False) == []


def test_no_tokens_no_pattern() -> None:
    assert search_for([]) is None
    assert cut("a<|im_end|>", []) == ["a<|im_end|>"]


def test_a_thousand_tokens_are_looked_for_as_quickly_as_a_few() -> None:
    many = [f"<|place_holder_{index:04}|>" for index in range(1000)]
    started = time.process_time()
    assert len(cut("<|place_" * 100_000, many)) == 1
    assert time.process_time() - started < 2.0  # an alternation takes a minute
