"""Answers that say of themselves whether they are whole, and whose they are.

The text of one begins with its nonce and the number of its pieces, repeats the nonce with a running
number in each, and ends with a checksum of all before. Nobody but the caller and the engine knows a
nonce, so another's nonce in an answer is another's text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

NONCE = re.compile(r"qz[0-9a-f]{24}")
_WHOLE = re.compile(
    r"(?s)(?P<text>(?P<nonce>qz[0-9a-f]{24}) begins (?P<pieces>\d+);.*) ends (?P<sum>\d+)\."
)


def pieces_of(nonce: str, count: int) -> Sequence[str]:
    """The text of an answer in ``count`` + 2 pieces, as a stream sends it."""
    told = [f"{nonce} begins {count};", *(f" {nonce} {number};" for number in range(count))]
    return [*told, f" ends {crc32(''.join(told).encode())}."]


def is_whole(text: str, nonce: str) -> bool:
    """Whether ``text`` is all of the answer to ``nonce``, by its own word."""
    found = _WHOLE.fullmatch(text)
    if found is None or found["nonce"] != nonce:
        return False
    told = found["text"]
    return crc32(told.encode()) == int(found["sum"]) and told == "".join(
        pieces_of(nonce, int(found["pieces"]))[:-1]
    )


def foreign(received: str, nonce: str) -> bool:
    """Whether anybody else's nonce is in what was received, headers included."""
    return any(found != nonce for found in NONCE.findall(received))
