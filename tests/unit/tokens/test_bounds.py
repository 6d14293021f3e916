"""What is saved, and that nothing is where the proof's conditions do not hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from assets_at_hand import EVERY_TOKENIZER, TINY, counter, encoder, store
from gateway.tokens import bounds
from gateway.tokens.bounds import BLOCK_BYTES, Savings, savings_of_json, savings_of_ranks
from gateway.types import Bounded, Counted, TextPrompt

GPT4 = next(keys[0] for keys, rule in bounds.SPLITTINGS.items() if rule == bounds.Splitting())
EVERY_PAIR = {bytes(pair): 0 for pair in itertools.product(range(256), repeat=2)}


def by_bytes(text: str) -> int:
    return len(text.encode())


def one_token(_: str) -> int:
    return 1


def saved(
    text: str,
    *,
    pattern: str = GPT4,
    special: tuple[str, ...] = (),
    length: Callable[[str], int] = by_bytes,
) -> int:
    """With a vocabulary in which every pair of bytes is a merge."""
    return savings_of_ranks(EVERY_PAIR, pattern, special, length).of(text.encode())


@pytest.mark.parametrize("size", range(1, 30))
def test_a_run_of_letters_saves_a_third_of_its_places(size: int) -> None:
    assert size - saved("x" * size) == (2 * size + 1) // 3


def test_a_contraction_is_paid_back() -> None:
    assert saved("'sabcd") == saved("abcd") == 1
    assert saved("'abcde") == 2


def test_the_insides_of_characters_save_a_half_each() -> None:
    assert saved("中文字国") == 4
    assert saved("яжяж") == 2
    assert saved("😀😀") == 2


def test_only_insides_of_characters_save_with_a_strange_pattern() -> None:
    assert saved("abc   123 中", pattern="[a-z]", length=one_token) == 1


def test_a_vocabulary_without_merges_saves_nothing() -> None:
    empty = savings_of_ranks({}, GPT4, (), by_bytes)
    assert empty.of("the quick     brown 123 中文 ====".encode()) == 0


def test_digits_save_where_every_group_is_a_token() -> None:
    assert saved("123456", length=one_token) == 4
    assert saved("123456") == 0
    assert saved("123456é", length=one_token) == 1
    assert saved("123456", length=one_token, special=("<1",)) == 0


def test_spaces_save_all_but_two_where_runs_are_tokens() -> None:
    assert saved("\n" + " " * 9 + "\x01", length=one_token) == 7
    assert saved(" " * 9) == 3


@pytest.mark.parametrize("other", ["\t", "\v", "\xa0", "\u3000"])
def test_spaces_beside_other_white_space_only_count_as_glued(other: str) -> None:
    run = " " * 12
    for text in (other + run + "\x01", "\x01" + run + other):
        assert saved(text, length=one_token) <= saved(run) + 1


def test_spaces_before_a_line_end_only_count_as_glued() -> None:
    assert saved(" " * 12 + "\n", length=one_token) == saved(" " * 12 + "\n") == 4


def test_runs_of_spaces_longer_than_any_token_only_count_as_glued() -> None:
    def up_to_eight(text: str) -> int:
        return 1 if len(text) <= 8 else 2

    assert saved(" " * 8, length=up_to_eight) == 6
    assert saved(" " * 9, length=up_to_eight) == 3


def test_added_tokens_unglue_their_ends() -> None:
    assert saved("ab" * 9, special=("b-",)) < saved("ab" * 9)
    assert saved(" " * 9, special=(" x",), length=one_token) == 0


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
def test_blocks_change_nothing(name: str) -> None:
    savings = encoder(name).savings
    assert savings is not None
    text = ("some words    here, 12345 \n    x 中文 (x)==y" * 9000).encode()
    assert len(text) > 2 * BLOCK_BYTES
    for start in range(6):
        assert savings.of(text[start:]) == whole(savings, text[start:])


def whole(savings: Savings, data: bytes) -> int:
    """The definition, written out: sums over all places of the text at once."""
    pairs = np.frombuffer(data, np.uint8).astype(np.int64)
    weights = savings.ascii_weights if data.isascii() else savings.weights
    total = int(weights[pairs[:-1] * 256 + pairs[1:]].astype(np.int64).sum())
    triples = sum(data[at : at + 3] == b"   " for at in range(len(data)))
    space = 6 if savings.longest_run else savings.space
    return -(-(total + space * triples) // 6)


def spec(**changes: Any) -> dict[str, Any]:
    path = store().resolve(TINY).path("tokenizer.json")
    assert path is not None
    return msgspec.json.decode(path.read_bytes()) | changes


def test_a_tokenizer_that_may_not_merge_all_it_could_is_not_trusted() -> None:
    for change in ({"dropout": 0.1}, {"type": "Unigram"}, {"byte_fallback": True}, {"vocab": {}}):
        assert savings_of_json(spec(model=spec()["model"] | change), by_bytes) is None


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_that_take_in_their_neighbours_forbid_it(flag: str) -> None:
    assert savings_of_json(spec(added_tokens=[{"content": "<x>", flag: True}]), by_bytes) is None


def test_another_pre_tokenizer_leaves_the_insides_of_characters() -> None:
    strange = savings_of_json(
        spec(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False}), by_bytes
    )
    assert strange is not None
    assert strange.of(b"the quick    brown fox") == 0


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
def test_every_tokenizer_at_hand_is_known(name: str) -> None:
    one = encoder(name)
    text = "It was the best of times, it was the worst of times.\n" * 50
    bound = one.upper_bound(text)
    assert bound is not None
    assert one.count(text) < bound < 0.85 * len(text)


def test_measure_is_settled_by_what_is_saved() -> None:
    one, text = counter(TINY), "the best of times, the worst of times. " * 60
    prompt, size = TextPrompt((text,)), len(text)
    assert one.measure(prompt, size) == Bounded(size, size)
    settled = one.measure(prompt, size - 100)
    assert isinstance(settled, Bounded)
    assert settled.longest <= size - 100
    assert isinstance(one.measure(prompt, size // 2), Counted)


def test_only_the_lines_out_of_nfc_are_charged_with_its_growth() -> None:
    calm = "the best of times\n" * 2000
    bound = encoder(TINY).upper_bound(calm + "e\u0301\n" + calm)
    assert bound is not None
    assert encoder(TINY).count(calm + "e\u0301\n" + calm) <= bound < 2.7 * len(calm)
    assert encoder(TINY).upper_bound("x\u0958" * 50) == 12 * 50


def test_growing_characters_without_a_line_feed_are_charged_whole() -> None:
    text = "\U0001d1c0" * 4000
    bound = encoder(TINY).upper_bound(text)
    assert bound == 3 * len(text.encode()) >= encoder(TINY).count(text)
