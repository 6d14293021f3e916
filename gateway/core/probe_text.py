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

from gateway.core.lexicon import SIZE, lexicon
from gateway.core.sentinel import LEAST_PARTIAL, WORDS, Numbers

SLOT = 59  # words; with the brackets around its tag about 64 tokens
ASK = "\n\nList every tag-like phrase above, word for word, one a line:\n"
PAD = " a"  # one token in the tokenizers we ship; the count is confirmed all the same

_WORD = re.compile(r"[^\W\d_]+")

Gram = tuple[int, ...]


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

    def words(self, count: int) -> Numbers:
        """The first ``count`` words of its stream, by number."""
        raw = shake_256(self.seed + b"\0" + self.label.encode()).digest(2 * count)
        return tuple(
            int.from_bytes(raw[at : at + 2]) % SIZE for at in range(0, len(raw), 2)
        )  # uniform: 4,096 divides 65,536

    def text(self, count: int, pad: int) -> str:
        """``count`` words, so many pad words, and the request to repeat the tags."""
        return "".join([*_slots(self.words(count)), PAD * pad, ASK])


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt as it is sent: ``tokens`` is its exact length."""

    label: str
    text: str
    numbers: Numbers
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


def traces(answer: str, own: Numbers, others: Mapping[str, Numbers]) -> tuple[Trace, ...]:
    """Which other prompts' words stand in an answer. Work: linear in all their words."""
    numbers = lexicon().numbers
    said = tuple(numbers.get(word, -1) for word in _WORD.findall(answer.casefold()))
    wanted = {gram for gram in _grams(said, LEAST_PARTIAL) if -1 not in gram}
    wanted.difference_update(_grams(own, LEAST_PARTIAL))
    if not wanted:
        return ()
    whole = set(_grams(said, WORDS))
    found = []
    for label, other in others.items():
        runs = sum(gram in wanted for gram in _grams(other, LEAST_PARTIAL))
        if runs:
            tags = sum(other[end - WORDS : end] in whole for end in range(SLOT, len(other), SLOT))
            found.append(Trace(label, runs, tags))
    return tuple(found)


def _slots(numbers: Numbers) -> Iterator[str]:
    phrase = lexicon().phrase
    for start in range(0, len(numbers), SLOT):
        slot = numbers[start : start + SLOT]
        if len(slot) < SLOT:
            yield " " + phrase(slot)
        else:
            yield f" {phrase(slot[:-WORDS])}\n[tag: {phrase(slot[-WORDS:])}]\n"


def _grams(numbers: Numbers, size: int) -> Iterator[Gram]:
    return zip(*(numbers[start:] for start in range(size)), strict=False)
