"""No text has more tokens than its bound, on any tokenizer, however awkward the text."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assets_at_hand import EVERY_TOKENIZER, encoder
from gateway.tokens import bounds
from gateway.tokens.bounds import savings_of_json

RELAXED = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# What the proof turns on: contractions, case, slashes after line ends, groups of digits, runs of
# white space of every kind beside each other, characters of 1 to 4 bytes, added tokens.
PIECES = (
    "a", "q", "z", "Z", "X", "the", "The", "QZ", "xj", "'", "'s", "'S", "'ll", "'re", "'ſ", "''",
    "ª", "ᴬ", "ǅ", "é", "e\u0301", "\u0301", "ß", "я", "Я", "ж", "ﬁ", "中", "龥", "鿿", "한", "の",
    "\u0e01", "\u0958", "\U0001d1c0", "😀", "𠀀", "\u200d", "1", "12", "123", "0000", "１", "٣",
    "²", "Ⅷ", " ", "  ", "   ", "    ", " " * 17, " " * 80, " " * 84, " " * 129, "\t", "\t\t",
    "\n", "\n\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\xa0", "\u2003", "\u2028", "\u3000",
    "/", "//", "!", "(", "((", "===", "=", "\\", "_", "-", "`", "|", "\x00", "\x7f", "<|", "|>",
    "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<｜end▁of▁sentence｜>", "<|end|>",
    "<｜fim▁hole｜>", "<|reserved_200013|>", "</s>", "[EOT]",
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ '", max_size=200),
    st.text(" \t\n\r/'()=", max_size=200),
)
ALPHABETS = (
    "qzxjkvwQZXJKVW", "aeiou bcd", "ab'sSdt ", " \n", " \n\tx", " (/\n", "0123456789", "09 ab",
    "01a１٣", "中文字龥鿿", "中文 a1", "яжЯЖ ", "한국어の", "😀𠀀\U0001d1c0a", "eé\u0301ß ",
    "/\n!(",
)  # fmt: skip


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
@RELAXED
@given(text=TEXTS)
def test_bound_is_never_below_the_count(name: str, text: str) -> None:
    bound = encoder(name).upper_bound(text)
    assert bound is not None
    assert encoder(name).length(text) <= bound <= 3 * len(text.encode())


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
def test_bound_holds_on_seeded_texts(name: str) -> None:
    one, dice = encoder(name), random.Random(20261130)
    for _ in range(1500):
        texts = (
            "".join(dice.choices(PIECES, k=dice.randint(1, 40))),
            "".join(dice.choices(dice.choice(ALPHABETS), k=dice.randint(1, 120))),
        )
        for text in texts:
            bound = one.upper_bound(text)
            assert bound is not None
            assert one.length(text) <= bound, repr(text)


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
def test_bound_holds_on_every_pair_of_letters(name: str) -> None:
    """Runs of one pair are where the glued thirds are all that is saved."""
    one = encoder(name)
    signs = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'/(=-_ \n0"
    for first in signs:
        for second in signs:
            text = (first + second) * 5 + first
            bound = one.upper_bound(text)
            assert bound is not None
            assert one.length(text) <= bound, repr(text)


def made_up(patterns: tuple[str, ...], dice: random.Random) -> dict[str, Any]:
    """A byte-level BPE that knows little more than pairs, so that the bound is all but reached."""
    symbols = bounds.byte_symbols()
    common = [symbols[byte] for byte in sorted({*range(32, 127), 10, 13, *range(0xA8, 0xC0)})]
    merges = {(dice.choice(common), dice.choice(common)) for _ in range(dice.randint(10, 9000))}
    leads = [symbols[byte] for byte in (0xC3, 0xD0, 0xD1, 0xE4, 0xE5, 0xF0)]
    merges |= {(dice.choice(leads), dice.choice(common)) for _ in range(300)}
    ordered = sorted(merges)
    dice.shuffle(ordered)
    if dice.random() < 0.5:
        ordered.insert(0, (symbols[32], symbols[32]))
    words = dict.fromkeys([*symbols, *("".join(pair) for pair in ordered)])
    splits = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False,
                  "trim_offsets": False}  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [list(pair) for pair in dict.fromkeys(ordered)],
        },
    }  # fmt: skip


@pytest.mark.parametrize("patterns", [one for one in bounds.SPLITTINGS if "++" not in one[0]])
@pytest.mark.parametrize("seed", range(6))
def test_bound_holds_where_a_vocabulary_leaves_it_no_slack(
    patterns: tuple[str, ...], seed: int
) -> None:
    dice = random.Random(seed)
    spec = made_up(patterns, dice)
    hf = tokenizers.Tokenizer.from_str(json.dumps(spec))

    def length(text: str) -> int:
        return len(hf.encode(text, add_special_tokens=False).ids)

    savings = savings_of_json(spec, length)
    assert savings is not None
    for _ in range(1500):
        alphabet = dice.choice((*ALPHABETS, PIECES))
        text = "".join(dice.choices(alphabet, k=dice.randint(1, 25)))
        assert length(text) <= len(text.encode()) - savings.of(text.encode()), repr(text)
