"""Cutting a text where an added token begins, which is exact: tokenizers split there first.

Added tokens are found before anything is normalised or pre-tokenised, and what lies between two
of them is tokenised by itself. That a found one is one the tokenizer finds as well needs more:
only tokens that no other can overlap are used (an *anchor*), so that it does not matter where a
search begins. In chats they stand between messages, which makes pieces that a later turn repeats.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tokens.chunks import chunks

SMALLEST_PIECE = 256  # characters; shorter ones are not worth a library call each
LONGEST_ANCHOR = 64  # characters; longer added tokens are left alone
LOOK = 2048  # characters the pattern looks through before ``find`` is asked again


@dataclass(frozen=True, slots=True)
class Anchors:
    """What to look for. ``first`` is the character that all begin with; empty: there is none."""

    pattern: re.Pattern[str]
    first: str

    def next(self, text: str, position: int) -> int | None:
        """Where the first one at ``position`` or after it begins.

        ``find`` reads a text of few such characters ten times as fast as the pattern does.
        """
        while (position := text.find(self.first, position)) >= 0:
            found = self.pattern.search(text, position, position + LOOK + LONGEST_ANCHOR)
            if found is not None:
                return found.start()
            position += LOOK
        return None


@dataclass(frozen=True, slots=True)
class Cutter:
    """Where one tokenizer's texts may be cut. ``None``: not there.

    Pieces between anchors have at least ``smallest`` characters, and parts of them that are cut
    at ``gateway.tokens.chunks``'s safe places at least ``chunk_chars``.
    """

    anchors: Anchors | None = None
    chunk_chars: int | None = None
    smallest: int = SMALLEST_PIECE

    def pieces(self, text: str) -> Iterator[str]:
        """The text in pieces whose counts add up to the whole's.

        Appending to the text changes its last piece only.
        """
        for start, end in self._between_anchors(text):
            if self.chunk_chars is None:
                yield text[start:end]
            else:
                yield from chunks(text, self.chunk_chars, start, end)

    def _between_anchors(self, text: str) -> Iterator[tuple[int, int]]:
        start = 0
        if self.anchors is not None:
            while (cut := self.anchors.next(text, start + self.smallest)) is not None:
                yield start, cut
                start = cut
        yield start, len(text)


UNCUT = Cutter()


def usable_tokens(added_tokens: Sequence[Mapping[str, Any]], *, normalises: bool) -> list[str]:
    """The added tokens of a ``tokenizer.json`` that may be anchors.

    Not those that take in their neighbours, nor those looked for in the normalised text.
    ``single_word`` tokens look at what is beyond a cut: with one of them there are no anchors.
    """
    if any(token.get("single_word") for token in added_tokens):
        return []
    contents = [token["content"] for token in added_tokens]
    plain = {
        token["content"]
        for token in added_tokens
        if not token.get("lstrip")
        and not token.get("rstrip")
        and not (normalises and token.get("normalized"))
    }
    return [token for token in apart(contents) if token in plain]


def apart(tokens: Sequence[str]) -> list[str]:
    """Those whose occurrences no other token's, nor another of their own, can overlap."""
    beginnings = {token[:length] for token in tokens for length in range(1, len(token))}
    endings = {token[length:] for token in tokens for length in range(1, len(token))}
    together = "\0".join(tokens)
    known = frozenset(tokens)
    return [
        token
        for token in tokens
        if 1 < len(token) <= LONGEST_ANCHOR
        and not any(token[:length] in endings for length in range(1, len(token)))
        and not any(token[length:] in beginnings for length in range(1, len(token)))
        and together.count(token) == 1
        and not any(part in known for part in _inner(token))
    ]


def _inner(token: str) -> Iterator[str]:
    """Every part of it but the whole."""
    for start in range(len(token)):
        for end in range(start + 1, len(token) + 1):
            if end - start < len(token):
                yield token[start:end]


def search_for(tokens: Collection[str]) -> Anchors | None:
    """One pattern for all of them, as a tree: an alternation of a thousand would be slow."""
    if not tokens:
        return None
    firsts = {token[0] for token in tokens}
    return Anchors(re.compile(_tree(sorted(tokens))), firsts.pop() if len(firsts) == 1 else "")


def _tree(words: Collection[str]) -> str:
    """Words, none the beginning of another, as nested alternations by first character."""
    by_first: dict[str, list[str]] = defaultdict(list)
    for word in words:
        by_first[word[0]].append(word[1:])
    branches = [
        re.escape(first) + (re.escape(rest[0]) if len(rest) == 1 else _tree(rest))
        for first, rest in by_first.items()
    ]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
