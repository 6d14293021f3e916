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

    __slots__ = ("_at", "_first", "_read", "_run", "_runs", "_tail", "_word", "end", "open_from")

    def __init__(self, read: Read, first_words: frozenset[int]) -> None:
        self._read = read
        self._first = first_words
        self._run: list[_Word] = []
        self._runs: list[Numbers] = []
        self._word = ""  # letters of a word not ended yet, no more than tell it from listed ones
        self._at = 0  # where that word began
        self._tail = ""  # what may be the begin of an escape
        self.end = 0
        self.open_from: int | None = None

    def feed(self, text: str) -> list[Found]:
        """The sentinels that ``text`` completes."""
        begin = self.end - len(self._tail)
        self.end += len(text)
        folded, places = _folded(self._tail + text)
        self._tail = ""
        if "\\" in folded:
            folded = self._without_escapes(folded)
        before = len(self._word)
        found: list[Found] = []
        joined = self._word + folded
        started = self._at
        self._word = ""
        for match in _WORD.finditer(joined):
            start, end = match.span()
            start -= before
            end -= before
            if start >= 0:
                started = begin + (start if places is None else places[start])
            ended = begin + (end if places is None else places[end])
            if end < len(folded):
                self._take(match[0], started, ended, found)
                continue
            self._word = match[0][: LONGEST + 1]
            self._at = started
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
        number = lexicon().numbers.get(word)
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
        number = lexicon().numbers.get(self._word)
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
        if word and word not in lexicon().beginnings:
            return None
        for known in run[1 - WORDS :]:
            if known.number in self._first:
                return known.start
        if word and lexicon().numbers.get(word) in self._first:
            return self._at
        return None


def _folded(text: str) -> tuple[str, list[int] | None]:
    """The text folded, and where each of its characters comes from, unless each from its own."""
    if text.isascii():
        return text.lower(), None
    parts = [_fold_character(character) for character in text]
    folded = "".join(parts)
    if len(folded) == len(text):
        return folded, None
    places = [place for place, part in enumerate(parts) for _ in part]
    return folded, [*places, len(text)]


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    return unicodedata.normalize("NFKC", character).casefold()
