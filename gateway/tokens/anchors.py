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

from gateway.tokens.chunks import WINDOW, chunks

SMALLEST_PIECE = 256  # characters; shorter ones are not worth a library call each
LONGEST_ANCHOR = 64  # characters; longer added tokens are left alone


@dataclass(frozen=True, slots=True)
class Cutter:
    """Where one tokenizer's texts may be cut. ``None``: not there.

    Pieces between anchors have at least ``smallest`` characters, and parts of them that are cut
    at ``gateway.tokens.chunks``'s safe places at least ``chunk_chars``.
    """

    anchors: re.Pattern[str] | None = None
    chunk_chars: int | None = None
    smallest: int = SMALLEST_PIECE

    def pieces(self, text: str) -> Iterator[str]:
        """The text in pieces whose counts add up to the whole's.

        Appending to the text changes its last piece only.
        """
        for part in self._between_anchors(text):
            if self.chunk_chars is None:
                yield part
            else:
                yield from chunks(part, self.chunk_chars)

    def _between_anchors(self, text: str) -> Iterator[str]:
        start = 0
        while (cut := _next_anchor(self.anchors, text, start + self.smallest)) is not None:
            yield text[start:cut]
            start = cut
        yield text[start:]


UNCUT = Cutter()


def _next_anchor(anchors: re.Pattern[str] | None, text: str, position: int) -> int | None:
    if anchors is None:
        return None
    for low in range(position, len(text), WINDOW):
        found = anchors.search(text, low, low + WINDOW + LONGEST_ANCHOR)
        if found is not None:
            return found.start()
    return None


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


def anchor_pattern(tokens: Collection[str]) -> re.Pattern[str] | None:
    """One pattern for all of them, as a tree: an alternation of a thousand would be slow."""
    return re.compile(_tree(sorted(tokens))) if tokens else None


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
