"""Where a text may be cut so that the parts' token counts add up to the whole's.

Two places are safe for the pre-tokenizers of the GPT-4 family (GPT-4o, Llama 3, Qwen, DeepSeek,
GLM): after a newline that something visible follows, and before a space between a word and a
word. No piece of their split patterns reaches across either, with one exception: o200k's
punctuation run takes in slashes after newlines, so a slash may not follow the cut. NFC changes
nothing across them either, since neither side can compose. It is a property of the pre-tokenizer
all the same, so ``gateway.tokens.selftest`` tries it on each tokenizer before it is relied on.

The place taken is the first one that is far enough from the cut before, so that cuts stay where
they were when text is appended: counts of parts can then be remembered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

CHUNK_CHARS = 32_768  # about 2 ms of cold text: short calls let other threads at the GIL
WINDOW = 512  # characters looked through for one kind of place before the other has its turn
TURNS = 64  # windows without a place between two rests: 0.4 ms at most
REST = 20e-6  # seconds; the GIL would be kept for 5 ms, whoever waits for it

# Two patterns that begin with a character each: one of both would be tried at every character.
_LINE = re.compile(r"\n(?=[^\s/])")
_SPACE = re.compile(r" (?<=[A-Za-z0-9] )(?=[A-Za-z])")
_LOOKAHEAD = 2  # characters a pattern may need beyond the window

# An added token that a cut could fall into, wherever it stands.
_CUTTABLE = re.compile(r"\n[^\s/]|[A-Za-z0-9] (?:[A-Za-z]|$)")


def chunks(
    text: str, size: int = CHUNK_CHARS, start: int = 0, end: int | None = None
) -> Iterator[str]:
    """The text (from ``start`` to ``end``) in parts of at least ``size``, cut at safe places only.

    Sizes are in characters. The parts of a longer text that begins with this one are the same, but
    for the last. A part runs on where there is no safe place: base64 and unspaced scripts come
    whole.
    """
    stop = len(text) if end is None else end
    while stop - start > size:
        cut = _next_cut(text, start + size, stop)
        if cut is None:
            break
        yield text[start:cut]
        start = cut
    yield text[start:stop]


def _next_cut(text: str, position: int, stop: int) -> int | None:
    """The first safe place whose first character is at ``position`` or after it."""
    for turn, low in enumerate(range(position, stop, WINDOW), 1):
        high = min(low + WINDOW + _LOOKAHEAD, stop)
        space = _SPACE.search(text, low, high)
        line = _LINE.search(text, low, high if space is None else space.start())
        if line is not None:
            return line.end()
        if space is not None:
            return space.start()
        if turn % TURNS == 0:
            time.sleep(REST)
    return None


def could_be_cut(added_token: str) -> bool:
    """Whether a safe place can lie inside an occurrence of this added token."""
    return _CUTTABLE.search(added_token) is not None
