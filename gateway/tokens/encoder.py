"""Counting the tokens of a text exactly, in short library calls, with a proved upper bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from gateway.tokens.anchors import UNCUT, Cutter
from gateway.tokens.bounds import Savings, tokens_at_most
from gateway.tokens.recall import NeedsPatience, Recall

LONG_PIECE = 131_072  # characters; a longer one without a safe cut can be seconds in one call


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


class Tally(Struct, frozen=True, gc=False):
    """A count. Where ``complete`` is False it stopped early: the text has at least ``tokens``."""

    tokens: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Means:
    """What a count may use: remembered counts, and (``patient``) seconds for a single call."""

    recall: Recall | None = None
    patient: bool = True


FREELY = Means()


@dataclass(frozen=True, slots=True)
class Encoder:
    """One tokenizer, as a counter. Immutable and shared between threads.

    ``length`` is one library call: the tokens of a text without what the post-processor adds,
    special tokens spelt in the text counting as the single tokens they are, as engines do.
    ``added_per_text`` is what ``add_special_tokens`` adds (BOS, EOS). ``cutter`` knows the cuts
    that the self-test found safe. ``digest`` (16 bytes) is of all that decides counts: remembered
    ones are told apart by it. ``warnings`` say, for operators, where this is not the first choice
    of library.
    """

    name: str
    library: str
    length: Callable[[str], int]
    vocab_size: int
    added_per_text: int = 0
    growth: Growth = Growth.UNKNOWN
    savings: Savings | None = None
    cutter: Cutter = UNCUT
    digest: bytes = b""
    warnings: tuple[str, ...] = ()

    def count(self, text: str, *, add_special_tokens: bool = False, means: Means = FREELY) -> int:
        """The exact number of tokens.

        Raises:
            UncountableText: a lone surrogate, or a text this library cannot take.
            NeedsPatience: without it this cannot be counted.
        """
        return self.count_up_to(
            text, None, add_special_tokens=add_special_tokens, means=means
        ).tokens

    def count_up_to(
        self,
        text: str,
        stop_at: int | None,
        *,
        add_special_tokens: bool = False,
        means: Means = FREELY,
    ) -> Tally:
        """Count, but stop once more than ``stop_at`` tokens were seen (None: never).

        Without patience, long pieces are left out as long as the others may pass ``stop_at``.

        Raises:
            UncountableText, NeedsPatience: as for ``count``.
        """
        total = self.added_per_text if add_special_tokens else 0
        seen = 0
        for piece in self.cutter.pieces(text):
            count = self._count_piece(piece, means)
            if count is None:
                continue
            total += count
            seen += len(piece)
            if stop_at is not None and total > stop_at:
                return Tally(total, complete=seen == len(text))
        if seen < len(text):
            raise NeedsPatience
        return Tally(total)

    def upper_bound(
        self, text: str, *, limit: int | None = None, add_special_tokens: bool = False
    ) -> int | None:
        """A number of tokens the text cannot exceed, without tokenising; None: no such bound.

        That is its bytes where they are within ``limit``, else less (``gateway.tokens.bounds``).
        Of the normalisers only NFC has a known effect. A lone surrogate has no bytes, hence no
        bound.
        """
        if self.growth is Growth.UNKNOWN:
            return None
        added = self.added_per_text if add_special_tokens else 0
        try:
            bound = tokens_at_most(
                text,
                self.savings,
                composes=self.growth is Growth.NFC,
                limit=None if limit is None else limit - added,
            )
        except UnicodeEncodeError:
            return None
        return bound + added

    def _count_piece(self, piece: str, means: Means) -> int | None:
        """Remembered or counted; None where that takes more patience than there is."""
        try:
            digest = means.recall and means.recall.digest(piece, self.digest)
            known = means.recall.get(digest) if means.recall and digest else None
            if known is not None:
                return known
            if len(piece) > LONG_PIECE and not means.patient:
                return None
            if means.recall:
                means.recall.afford(len(piece))
            count = self.length(piece)
        except (UnicodeEncodeError, TypeError):  # HF tokenizers raises TypeError
            raise UncountableText("lone_surrogate") from None
        except BaseException as error:
            # A panic in a library of Rust is no Exception, and would be taken for a bug of ours.
            if type(error).__module__ != "pyo3_runtime":
                raise
            raise UncountableText("run_too_long") from None
        if means.recall and digest:
            means.recall.put(digest, count)
        return count
