"""The word list: its shape, and that each word is one token wherever we can look."""

from __future__ import annotations

import pytest

from assets_at_hand import FETCHED, encoder
from gateway.core import lexicon as module
from gateway.core.lexicon import BITS, LONGEST, SIZE, lexicon


def test_it_has_one_word_for_every_twelve_bits():
    words = lexicon().words

    assert len(words) == SIZE == 1 << BITS
    assert list(words) == sorted(set(words))
    assert all(word.isascii() and word.islower() and 4 <= len(word) <= LONGEST for word in words)
    assert all(words[number] == word for word, number in lexicon().numbers.items())


def test_a_changed_list_is_refused(monkeypatch):
    monkeypatch.setattr(module, "CHECKSUM", "0" * 64)
    module.lexicon.cache_clear()
    try:
        with pytest.raises(ValueError, match="not this version's list"):
            module.lexicon()
    finally:
        monkeypatch.undo()
        module.lexicon.cache_clear()


def test_no_edit_of_one_letter_makes_a_word_another():
    def patterns(word):
        yield from (f"{word[:at]}?{word[at:]}" for at in range(len(word) + 1))
        yield from (f"{word[:at]}?{word[at + 1 :]}" for at in range(len(word)))

    owner = {}
    for word in lexicon().words:
        for pattern in set(patterns(word)):
            assert owner.setdefault(pattern, word) == word


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.assets) for name in FETCHED])
def test_each_word_is_one_token_after_a_space(name):
    counts = encoder(name)

    assert [word for word in lexicon().words if counts.count(f" {word}") != 1] == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.assets) for name in FETCHED])
def test_a_phrase_is_eight_tokens(name):
    words = lexicon().words
    counts = encoder(name)

    for start in range(0, SIZE - 8, 97):
        phrase = " ".join(words[start : start + 8])
        assert counts.count(f"mention): {phrase}") == counts.count("mention):") + 8
