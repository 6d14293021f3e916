"""Counting the tokens of a text exactly, in short library calls, with a proved upper bound."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gateway.tokens.bounds import Savings
from gateway.tokens.chunks import CHUNK_CHARS, chunks

NFC_GROWTH = 3  # UTF-8 bytes of the NFC form to those of the text, at most (Unicode UAX #15)


class UncountableText(Exception):
    """A text the library at hand cannot encode. ``reason`` is a fixed word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Growth(Enum):
    """What happens to a text's bytes before they become tokens."""

    NONE = "none"
    NFC = "nfc"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Tally:
    """A count. Where ``complete`` is False it stopped early: the text has at least ``tokens``."""

    tokens: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Encoder:
    """One tokenizer, as a counter. Immutable and shared between threads.

    ``length`` is one library call: the tokens of a text without what the post-processor adds,
    special tokens spelt in the text counting as the single tokens they are, as engines do.
    ``added_per_text`` is what ``add_special_tokens`` adds (BOS, EOS). ``chunk_chars`` None: the
    self-test found cutting unsafe for this tokenizer, so texts are counted whole. ``warnings``
    say, for operators, where this is not the first choice of library.
    """

    name: str
    library: str
    length: Callable[[str], int]
    vocab_size: int
    added_per_text: int = 0
    growth: Growth = Growth.UNKNOWN
    savings: Savings | None = None
    chunk_chars: int | None = CHUNK_CHARS
    warnings: tuple[str, ...] = ()

    def count(self, text: str, *, add_special_tokens: bool = False) -> int:
        """The exact number of tokens.

        Raises:
            UncountableText: a lone surrogate, or a text this library cannot take.
        """
        return self.count_up_to(text, None, add_special_tokens=add_special_tokens).tokens

    def count_up_to(
        self, text: str, stop_at: int | None, *, add_special_tokens: bool = False
    ) -> Tally:
        """Count, but stop once more than ``stop_at`` tokens were seen (None: never).

        Raises:
            UncountableText: as for ``count``.
        """
        total = self.added_per_text if add_special_tokens else 0
        parts = (text,) if self.chunk_chars is None else chunks(text, self.chunk_chars)
        seen = 0
        for part in parts:
            total += self._length(part)
            seen += len(part)
            if stop_at is not None and total > stop_at:
                return Tally(total, complete=seen == len(text))
        return Tally(total)

    def upper_bound(
        self, text: str, *, limit: int | None = None, add_special_tokens: bool = False
    ) -> int | None:
        """A number of tokens the text cannot exceed, without tokenising; None: no such bound.

        Every token stands for at least one byte of the normalised text, and ``savings`` knows
        places where it stands for more; they are looked at unless the bytes are within ``limit``.
        Of the normalisers only NFC has a known effect: none on a text in NFC already, nor on any
        part of it, and else at most a growth to three times the bytes (U+1D1C0 reaches it). A
        lone surrogate has no bytes, hence no bound.
        """
        if self.growth is Growth.UNKNOWN:
            return None
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return None
        bound = len(data) + (self.added_per_text if add_special_tokens else 0)
        if self.growth is Growth.NFC and not unicodedata.is_normalized("NFC", text):
            return bound + (NFC_GROWTH - 1) * len(data)
        if self.savings is None or (limit is not None and bound <= limit):
            return bound
        return bound - self.savings.of(data)

    def _length(self, part: str) -> int:
        try:
            return self.length(part)
        except UnicodeEncodeError:
            raise UncountableText("lone_surrogate") from None
        except TypeError:  # what HF tokenizers raises for a lone surrogate
            raise UncountableText("lone_surrogate") from None
