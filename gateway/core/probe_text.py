"""The texts of a probe: random words that are told apart by any five of them in a row.

Every prompt has a stream of words of its own from the sentinels' list, drawn from a secret seed.
About every 64 tokens eight of them stand as a tag. Five words in a row are 60 bits: in an answer
to another prompt they are no chance, whether they come from a tag or from between two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import shake_256
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.core.lexicon import SIZE, lexicon
from gateway.core.sentinel import LEAST_PARTIAL, WORDS

SLOT = 59  # words; with the brackets around its tag about 64 tokens
ASK = "\n\nList every tag-like phrase above, word for word, one a line:\n"
PAD = " a"  # one token in the tokenizers we ship; the count is confirmed all the same

_WORD = re.compile(r"[^\W\d_]+")

BITS = SIZE.bit_length() - 1  # of a word: five of them fit into 63

# Words by number. A prompt of a million tokens has about as many: two bytes each, not an object.
Stream = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Trace:
    """Words of the prompt ``label`` in an answer to another: runs of five, and whole tags."""

    label: str
    runs: int
    tags: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A prompt's text before its length is settled. ``seed`` is secret, ``label`` unique in it."""

    seed: bytes
    label: str

    def words(self, count: int) -> Stream:
        """The first ``count`` words of its stream, by number."""
        raw = shake_256(self.seed + b"\0" + self.label.encode()).digest(2 * count)
        return np.frombuffer(raw, np.uint16) % np.uint16(SIZE)  # uniform: 4,096 divides 65,536

    def text(self, count: int, pad: int) -> str:
        """``count`` words, so many pad words, and the request to repeat the tags."""
        return "".join([*_slots(self.words(count)), PAD * pad, ASK])


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt as it is sent: ``tokens`` is its exact length."""

    label: str
    text: str
    numbers: Stream
    tokens: int


@dataclass(frozen=True, slots=True)
class Guess:
    """How many words and pad words may make the wanted length."""

    words: int
    pad: int = 0

    def better(self, missing: int) -> Guess | None:
        """The next guess where ``missing`` tokens (negative: too many) were off; None: give up."""
        if self.pad + missing >= 0:
            return Guess(self.words, self.pad + missing)
        fewer = self.words + missing - 1
        return Guess(fewer) if fewer >= 0 else None


def first_guess(wanted: int, sample_words: int, sample_tokens: int) -> Guess:
    """From one count of a sample: a little less than ``wanted``, the rest is padding."""
    if not sample_words:
        return Guess(0)
    return Guess(max(0, int((wanted - 32) * sample_words / sample_tokens * 0.998)))


def traces(answer: str, own: Stream, others: Mapping[str, Stream]) -> tuple[Trace, ...]:
    """Which other prompts' words stand in an answer. Work: linear in all their words."""
    numbers = lexicon().numbers
    said = np.array([numbers.get(word, -1) for word in _WORD.findall(answer.casefold())], np.int64)
    grams = _grams(said)
    wanted = np.unique(grams[_all_listed(said)])
    own_grams = _grams(own)
    wanted = np.setdiff1d(wanted, own_grams[_among(own_grams, wanted)])
    if not wanted.size:
        return ()
    whole = {tuple(said[start : start + WORDS]) for start in range(len(said) - WORDS + 1)}
    found = []
    for label, other in others.items():
        runs = int(_among(_grams(other), wanted).sum())
        if runs:
            tags = sum(tuple(other[end - WORDS : end]) in whole for end in _tag_ends(other))
            found.append(Trace(label, runs, tags))
    return tuple(found)


def _slots(numbers: Stream) -> Iterator[str]:
    phrase = lexicon().phrase
    for start in range(0, len(numbers), SLOT):
        slot = numbers[start : start + SLOT].tolist()
        if len(slot) < SLOT:
            yield " " + phrase(slot)
        else:
            yield f" {phrase(slot[:-WORDS])}\n[tag: {phrase(slot[-WORDS:])}]\n"


def _tag_ends(numbers: Stream) -> range:
    return range(SLOT, len(numbers) + 1, SLOT)


def _grams(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Every five words in a row as one number."""
    count = max(0, len(numbers) - LEAST_PARTIAL + 1)
    packed = np.zeros(count, np.int64)
    for place in range(LEAST_PARTIAL):
        packed = (packed << BITS) | numbers[place : place + count].astype(np.int64)
    return packed


def _among(grams: npt.NDArray[np.int64], few: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the grams are among a few, which are sorted; the many are not, as by ``isin``."""
    if not few.size:
        return np.zeros(len(grams), np.bool_)
    places = np.minimum(np.searchsorted(few, grams), few.size - 1)
    return np.equal(few[places], grams)


def _all_listed(said: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of an answer's grams are words of the list throughout."""
    count = max(0, len(said) - LEAST_PARTIAL + 1)
    listed = np.ones(count, np.bool_)
    for place in range(LEAST_PARTIAL):
        listed &= said[place : place + count] >= 0
    return listed
