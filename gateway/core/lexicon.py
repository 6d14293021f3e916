"""The words sentinels are made of: 4,096 rare ones, each one token in every tokenizer we ship.

``scripts/build_wordlist.py`` makes the list and says how. A word's number is its place in the
alphabet's order, so the file is part of the wire format: sentinels written with one list cannot
be read with another, and ``CHECKSUM`` holds it fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

SIZE = 4096
BITS = 12  # of one word
LONGEST = 7  # letters
CHECKSUM = "199dfc737885a68b0634120240b814783252532204d24264cc725e2f6f0d4b8c"


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The list, by number and by word; ``beginnings`` are all non-empty ones, whole words too."""

    words: tuple[str, ...]
    numbers: Mapping[str, int]
    beginnings: frozenset[str]

    def phrase(self, numbers: Iterable[int]) -> str:
        """The words of these numbers, with single spaces."""
        return " ".join(self.words[number] for number in numbers)


@cache
def lexicon() -> Lexicon:
    """The list that ships with the package. Raises ``ValueError`` where it was changed."""
    text = files("gateway.core").joinpath("sentinel_words.txt").read_bytes()
    if sha256(text).hexdigest() != CHECKSUM:
        raise ValueError("gateway/core/sentinel_words.txt is not this version's list")
    words = tuple(text.decode("ascii").split())
    return Lexicon(
        words,
        {word: number for number, word in enumerate(words)},
        frozenset(word[:end] for word in words for end in range(1, len(word) + 1)),
    )
