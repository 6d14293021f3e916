"""Texts of an exact size in characters, seeded: the same on every machine with the same Python."""

from __future__ import annotations

import pydoc_data.topics
import random
import string
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_HAN = range(0x4E00, 0x9FA6)
_COMMON_HAN = (
    "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过"
)


def prose(size: int, dice: random.Random) -> str:
    """English: the sections of Python's language reference, shuffled."""
    return _shuffled([*pydoc_data.topics.topics.values()], size, dice)


def code(size: int, dice: random.Random) -> str:
    """Python's own library, modules shuffled."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return _shuffled([path.read_text("utf-8", errors="ignore") for path in paths], size, dice)


def fresh_words(size: int, dice: random.Random) -> str:
    """Words nobody has written before: nothing a cache of words can know."""
    words: list[str] = []
    have = 0
    while have < size:
        syllables = dice.randint(2, 4)
        word = "".join(dice.choice(_CONSONANTS) + dice.choice(_VOWELS) for _ in range(syllables))
        words.append(word)
        have += len(word) + 1
    return " ".join(words)[:size]


def chinese(size: int, dice: random.Random) -> str:
    """Common characters, one in five from the whole range, with punctuation and some Latin."""
    rare = [chr(code) for code in _HAN]
    parts = [
        dice.choice(rare) if dice.random() < 0.2 else dice.choice(_COMMON_HAN) for _ in range(size)
    ]
    for at in range(0, size, 17):
        parts[at] = dice.choice(("，", "。", " API ", "2026", "\n"))
    return "".join(parts)[:size]


def base64(size: int, dice: random.Random) -> str:
    """Letters and digits without a place to cut."""
    return "".join(dice.choices(string.ascii_letters + string.digits + "+/", k=size))


def digits(size: int, dice: random.Random) -> str:
    """Nothing but digits: with Qwen3 every byte is a token."""
    return "".join(dice.choices(string.digits, k=size))


KINDS: Mapping[str, Callable[[int, random.Random], str]] = {
    "prose": prose,
    "code": code,
    "fresh words": fresh_words,
    "Chinese": chinese,
    "base64": base64,
    "digits": digits,
}


def _shuffled(parts: list[str], size: int, dice: random.Random) -> str:
    """The parts in a drawn order, again and again until they are enough."""
    chosen: list[str] = []
    have = 0
    while have < size:
        dice.shuffle(parts)
        chosen += parts
        have += sum(map(len, parts))
    return "".join(chosen)[:size]
