"""Short secrets, hashed whole: addresses, keys, IBANs, vehicle and order numbers.

A 17-character number is shorter than any window, yet one is enough to tell a leak (Ollama #17475).
An atom is a word of 12 characters or more with digits and letters, or an e-mail address. One that
a single other tenant sent and the request did not is a weak finding, never more: names of models
and releases look the same until a second tenant has sent them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from hashlib import blake2b
from typing import Final

import numpy as np

from gateway.core.fingerprint.index import Index
from gateway.core.fingerprint.normal import gathered
from gateway.core.fingerprint.shingles import Hashes

LEAST_CHARS: Final = 12
MOST_CHARS: Final = 128
_LEAST_DIGITS: Final = 4
_LEAST_LETTERS: Final = 2
_WORD: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_%+@-]|\.(?=[A-Za-z0-9])){11,127}")
_HINT: Final = re.compile(r"[0-9@]")
_IBAN: Final = re.compile(r"[A-Z]{2}[0-9]{2}(?: [A-Z0-9]{4}){3,7}(?: [A-Z0-9]{1,3})?\b")
_ENOUGH: Final = 512  # characters of an answer that are searched at a time
_STEP: Final = 2**14  # characters: a search keeps the interpreter's lock
_MAIL: Final = re.compile(r"[^@]+@[^@]+\.[A-Za-z]{2,}")


def atoms(key: bytes, texts: Iterable[str]) -> Hashes:
    """Keyed hashes of the atoms in some texts, each once."""
    found = {
        _hash(key, atom)
        for text in gathered(texts)
        for part in _parts(text)
        for atom in _atoms(part)
    }
    return np.array(sorted(found), np.uint64)


class AtomMatcher:
    """Finds other tenants' atoms in one answer. ``tenant`` is the number of who gets it."""

    def __init__(self, key: bytes, index: Index, tenant: int) -> None:
        self._key = key
        self._index = index
        self._tenant = tenant
        self._held: dict[Hashable, str] = {}
        self._foreign: set[int] = set()

    def feed(self, channel: Hashable, text: str) -> None:
        """The next piece of a channel's text, cut anywhere."""
        held = self._held.get(channel, "") + text
        if len(held) >= _ENOUGH:
            whole, held = _whole_words(held)
            self._look(whole)
        self._held[channel] = held

    def finish(self, channel: Hashable) -> None:
        """The channel's text is over."""
        self._look(self._held.pop(channel, ""))

    def end(self) -> Hashes:
        """The answer is over: the foreign atoms in it, which the own prompt may hold as well."""
        for channel in tuple(self._held):
            self.finish(channel)
        return np.array(sorted(self._foreign), np.uint64)

    def _look(self, text: str) -> None:
        hits = self._index.hits(atoms(self._key, [text]), 0, self._tenant)
        self._foreign.update(hit.hash for hit in hits)


def _whole_words(text: str) -> tuple[str, str]:
    """A text that still grows: what of it can be searched, and the word at its end that cannot."""
    end = max(text.rfind(" "), text.rfind("\n"))
    if end < 0 and len(text) > MOST_CHARS:
        return text, ""
    return text[: end + 1], text[end + 1 :]


def _parts(text: str) -> Iterator[str]:
    """A text in parts that take a millisecond, cut between words."""
    rest = ""
    for start in range(0, len(text), _STEP):
        part, rest = _whole_words(rest + text[start : start + _STEP])
        yield part
    yield rest


def _atoms(text: str) -> Iterator[str]:
    for chunk in text.split():  # eight times as fast as to search everywhere
        if len(chunk) >= LEAST_CHARS and _HINT.search(chunk):
            yield from (word.lower() for word in _WORD.findall(chunk) if _tells(word))
    for grouped in _IBAN.findall(text):
        yield grouped.replace(" ", "").lower()


def _tells(word: str) -> bool:
    """Whether a word is likely to be one person's or one account's."""
    if _MAIL.fullmatch(word):
        return True
    digits = sum(map(str.isdigit, word))
    return digits >= _LEAST_DIGITS and sum(map(str.isalpha, word)) >= _LEAST_LETTERS


def _hash(key: bytes, atom: str) -> int:
    digest = blake2b(atom.encode(), key=key[:64], person=b"atoms", digest_size=8).digest()
    return int.from_bytes(digest, "little")
