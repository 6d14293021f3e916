"""Finding sentinels in text that comes in pieces, cut anywhere.

Text is compared in a normal form: each character by NFKC and case folding, and every run of what
is no letter, JSON's escapes (``\\n``, ``\\u2014``) included, as one space. So markup, line ends and
the quoting of tool arguments do not hide a sentinel; letters glued to a word do. A word followed
by more than ``LONGEST_GAP`` characters without a letter ends a run: memory and waiting are bounded.

Between pieces a scanner keeps twelve words at most. Places are counted in characters of all the
text it was given.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from gateway.core.lexicon import LONGEST, lexicon
from gateway.core.sentinel import LEAST_PARTIAL, WORDS, Numbers, Sighting

LONGEST_GAP = 64
_LONGEST_RUN = 12  # words kept: eight for a match, and room for windows of five to overlap
_DROPPED = 5
_MOST_RUNS = 16
_BLOCK = 2**14  # characters
_EDGE = (WORDS - 1) * (LONGEST_GAP + 6 * LONGEST)  # as long as the words before a last one can be

_WORD: Final = re.compile(r"[^\W\d_]+")
_ESCAPE: Final = re.compile(r"\\+(?:u[0-9a-f]{4}|[bfnrt])")
_BROKEN_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-f]{0,3})?\Z")

Read = Callable[[Numbers], Sighting | None]


class Found(NamedTuple):
    """A sentinel, and the characters from its first word's begin to its last word's end."""

    sighting: Sighting
    start: int
    end: int


class _Word(NamedTuple):
    number: int
    start: int
    end: int


class Scanner:
    """Reads one channel. ``first_words`` are those a sentinel worth finding begins with.

    ``open_from`` is where the text begins that could still become a sentinel, None where none
    does. ``end`` is how many characters there were.
    """

    __slots__ = (
        "_at", "_beginnings", "_first", "_numbers", "_read", "_run", "_runs", "_tail", "_word",
        "end", "open_from",
    )  # fmt: skip

    def __init__(self, read: Read, first_words: frozenset[int]) -> None:
        self._read = read
        self._first = first_words
        self._numbers, self._beginnings = lexicon().numbers, lexicon().beginnings
        self._run: list[_Word] = []
        self._runs: list[Numbers] = []
        self._word = ""  # letters of a word not ended yet, no more than tell it from listed ones
        self._at = 0  # where that word began
        self._tail = ""  # what may be the begin of an escape
        self.end = 0
        self.open_from: int | None = None

    def feed(self, text: str) -> list[Found]:
        """The sentinels that ``text`` completes."""
        if self._is_next_word(text):
            return []
        if len(text) < _BLOCK:
            return self._read_through(text)
        found: list[Found] = []
        for start in range(0, len(text), _BLOCK):
            found += self._skim(text[start : start + _BLOCK])
        return found

    def _is_next_word(self, text: str) -> bool:
        """Whether it was a space and a word after an unlisted one: most tokens, for less work."""
        word = text[1:]
        if (
            self._run
            or self._tail
            or not (text[:1] == " " and word.isascii() and word.isalpha())
            or self._word in self._numbers
        ):
            return False
        self._at = self.end + 1
        self.end += len(text)
        word = word.lower()
        self._word = word[: LONGEST + 1]
        self.open_from = self._at if self._numbers.get(word) in self._first else None
        return True

    def _skim(self, text: str) -> list[Found]:
        """As ``feed``; the middle is skipped where no five listed words stand in a row there.

        Five times as fast. The edges are read, for what began before or goes on afterwards.
        """
        if len(text) <= 2 * _EDGE or _has_a_run(text):
            return self._read_through(text)
        found = self._read_through(text[:_EDGE])
        self._break()
        self._word = self._tail = ""
        self.end += len(text) - 2 * _EDGE
        return found + self._read_through(text[-_EDGE:])

    def _read_through(self, text: str) -> list[Found]:
        begin = self.end - len(self._tail)
        self.end += len(text)
        folded, places = _folded(self._tail + text if self._tail else text)
        self._tail = ""
        if "\\" in folded:
            folded = self._without_escapes(folded)
        before, started = len(self._word), self._at
        joined = self._word + folded if before else folded
        length = len(joined)
        self._word = ""
        found: list[Found] = []
        for match in _WORD.finditer(joined):
            start, end = match.span()
            if start >= before:
                started = begin + (start - before if places is None else places[start - before])
            ended = begin + (end - before if places is None else places[end - before])
            if end < length:
                self._take(match[0], started, ended, found)
                continue
            self._word = match[0][: LONGEST + 1]
            self._at = started
            if self._run:
                self._look_ahead(ended, found)
        self.open_from = self._opening()
        return found

    def close(self) -> tuple[Numbers, ...]:
        """No more text comes: the runs of five words or more that were no sentinel."""
        if self._word:
            self._take(self._word, self._at, self.end, [])
            self._word = ""
        self._break()
        self.open_from = None
        return tuple(self._runs)

    def _without_escapes(self, folded: str) -> str:
        if (broken := _BROKEN_ESCAPE.search(folded)) is not None:
            self._tail = broken[0]
            folded = folded[: broken.start()]
        return _ESCAPE.sub(lambda escape: " " * len(escape[0]), folded)

    def _take(self, word: str, start: int, end: int, found: list[Found]) -> None:
        """A word has ended."""
        number = self._numbers.get(word)
        run = self._run
        if number is None:
            if run:
                self._break()
            return
        if run and start - run[-1].end > LONGEST_GAP:
            self._break()
        run.append(_Word(number, start, end))
        if len(run) >= WORDS and self._matches(run[-WORDS:], found):
            run.clear()
        elif len(run) > _LONGEST_RUN:
            self._keep(run)
            del run[:_DROPPED]

    def _look_ahead(self, end: int, found: list[Found]) -> None:
        """An eighth word is enough although it has not ended: nothing may wait for more."""
        run = self._run
        number = self._numbers.get(self._word)
        if number is None or len(run) < WORDS - 1 or self._at - run[-1].end > LONGEST_GAP:
            return
        if self._matches([*run[1 - WORDS :], _Word(number, self._at, end)], found):
            run.clear()
            self._word = ""

    def _matches(self, words: list[_Word], found: list[Found]) -> bool:
        if words[0].number not in self._first:
            return False
        sighting = self._read(tuple(word.number for word in words))
        if sighting is None:
            return False
        found.append(Found(sighting, words[0].start, words[-1].end))
        return True

    def _break(self) -> None:
        self._keep(self._run)
        self._run.clear()

    def _keep(self, run: list[_Word]) -> None:
        if len(run) >= LEAST_PARTIAL and len(self._runs) < _MOST_RUNS:
            self._runs.append(tuple(word.number for word in run))

    def _opening(self) -> int | None:
        run, word = self._run, self._word
        if run and (self._at if word else self.end) - run[-1].end > LONGEST_GAP:
            run = []
        if run and (not word or word in self._beginnings):
            for known in run[1 - WORDS :]:
                if known.number in self._first:
                    return known.start
        return self._at if word and self._numbers.get(word) in self._first else None


def _has_a_run(text: str) -> bool:
    """Whether five listed words in a row stand in the text, whatever is between them."""
    folded, _ = _folded(text)
    words = _WORD.findall(_ESCAPE.sub(" ", folded) if "\\" in folded else folded)
    listed = bytes([number is not None for number in map(lexicon().numbers.get, words)])
    return b"\1" * LEAST_PARTIAL in listed


def _folded(text: str) -> tuple[str, list[int] | None]:
    """The text folded, and where each of its characters comes from, unless each from its own."""
    if text.isascii():
        return text.lower(), None
    table = {ord(character): _fold_character(character) for character in set(text)}
    folded = text.translate(table)
    if len(folded) == len(text):  # none folds to nothing, so each to one
        return folded, None
    places = [place for place, character in enumerate(text) for _ in table[ord(character)]]
    return folded, [*places, len(text)]


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    return unicodedata.normalize("NFKC", character).casefold()
