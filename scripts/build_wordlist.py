"""Builds gateway/core/sentinel_words.txt: 4,096 rare English words, each one token everywhere.

A word qualifies if " word" is one token in every vocabulary in tokenizers/, it is English, and it
neither offends nor negates. The rarest are taken first, by the highest frequency a word has in
English, in any of ``LANGUAGES`` or in Python source (3.11.7's library); of two that differ in one
letter the rarer stays. Same inputs, same list: the order is total, and the packages are pinned.

    python3 -m venv /tmp/words && /tmp/words/bin/pip install \
        wordfreq==3.1.1 english-words==2.0.2 better-profanity==0.7.0
    PYTHONPATH=. /tmp/words/bin/python scripts/build_wordlist.py

Frequencies are wordfreq's (Robyn Speer, CC BY-SA 4.0; Google Books Ngrams among its sources); the
list repeats none of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "gateway" / "core" / "sentinel_words.txt"
VOCABULARIES = ("cl100k_base", "deepseek_v3", "deepseek_v4", "gptoss", "o200k_base", "qwen3")
SIZE = 4096
LANGUAGES = (  # those written in Latin letters that wordfreq knows
    "ca", "cs", "da", "de", "es", "fi", "fil", "fr", "hu", "id", "is", "it", "lt", "lv", "ms",
    "nb", "nl", "pl", "pt", "ro", "sh", "sk", "sl", "sv", "tr", "vi",
)  # fmt: skip

# Zipf scale: log10 of occurrences in a billion words.
LEAST_ENGLISH = 1.5  # rarer ones are stems and dictionary oddities
FAMILIAR = 2.5  # from here on a word is taken for English without a dictionary

_WORD = re.compile(r"[a-z]{4,7}")
_IDENTIFIER_PART = re.compile(r"[A-Z]?[a-z]{3,}")
# Stems that better-profanity lets pass and a marker had better not hold: insults, violence, sex,
# drugs, disease and death, groups of people, and words that turn a sentence round.
_UNWANTED = re.compile(
    r"abort|abus|addict|anal|anus|arse|assault|behead|bigot|bitch|blood|bomb|boob|bordel|breast"
    r"|brothel|cancer|castr|christ|cocain|communi|corps|coup|crap|cripp|cunt|damn|dead|death|demon"
    r"|devil|dick|die[ds]?$|drug|drunk|dumb|dwarf|enem|erect|erotic|evil|execut|fag|fascis|fat$"
    r"|fatal|feminis|fetish|fetus|foul|freak|fuck|gay|genoc|genit|ghetto|god|guilt|gun|hang|harass"
    r"|hate|hatred|hell|hero[i]n|hitler|hooker|horny|hosti|idiot|impot|incest|infest|islam|jail"
    r"|jesus|jew|jihad|juda|kill|lesbi|lynch|maim|massacr|mascul|molest|moron|mosque|murder|muslim"
    r"|naked|nazi|negro|nude|nudity|obes|orgas|orgy|panties|penis|perver|pimp|piss|plague|poison"
    r"|porn|prison|pussy|queer|racis|racial|rape|rapist|retard|sadis|satan|semen|sex|shit|shoot"
    r"|shot|skank|slaught|slave|slut|sniper|stab|stupid|suicid|terror|testic|tit$|tits|tortur"
    r"|trans$|tumor|tumour|ugly|vagin|victim|violen|virgin|vomit|vulva|weapon|whore|wound"
    r"|never|nobod|none|noone|nothing|nowhere|neither|without|cannot|couldn|didn|doesn|hadn|hasn"
    r"|haven$|isn$|shouldn|wasn|weren|wouldn|unless|refus|reject|deny|denie|denial|ignor|forbid"
    r"|prohib|disab|revok|^wont$|hardly|avoid|^cease|^omit|undone|illegal|^wrong|invalid"
    r"|insane|bull[iy]|pagan|thief|thieve|thigh|coffin|bipolar|autis|asthma|whisk"
)


def vocabulary(name: str) -> set[str]:
    """The words of four to seven small letters that are one token with the space before them."""
    folder = ROOT / "tokenizers" / name
    if (merges := folder / f"{name}.tiktoken").exists():
        tokens = [base64.b64decode(line.split()[0]) for line in merges.read_bytes().splitlines()]
    else:
        model = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
        tokens = [token.replace("\u0120", " ").encode() for token in model["vocab"]]
    words = (token[1:].decode("latin-1") for token in tokens if token[:1] == b" ")
    return {word for word in words if _WORD.fullmatch(word)}


def source_code() -> Counter[str]:
    """How often each part of an identifier or word occurs in Python's own library."""
    counts: Counter[str] = Counter()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in path.parts:
            text = path.read_text("utf-8", errors="ignore")
            counts.update(part.lower() for part in _IDENTIFIER_PART.findall(text))
    return counts


def frequencies(words: set[str]) -> dict[str, tuple[float, float]]:
    """For each word its frequency in English, and the highest anywhere else (Zipf scale)."""
    from wordfreq import zipf_frequency  # noqa: PLC0415 - build-time only

    code = source_code()
    billion = 1e9 / sum(code.values())
    return {
        word: (
            zipf_frequency(word, "en", "large"),
            max(
                math.log10(code[word] * billion) if code[word] else 0.0,
                *(zipf_frequency(word, language) for language in LANGUAGES),
            ),
        )
        for word in words
    }


def acceptable(words: set[str], known: dict[str, tuple[float, float]]) -> set[str]:
    """The English ones that neither offend nor negate."""
    from better_profanity import profanity  # noqa: PLC0415 - build-time only
    from english_words import get_english_words_set  # noqa: PLC0415 - build-time only

    dictionary = get_english_words_set(["web2", "gcide"], lower=True)

    def is_english(word: str) -> bool:
        english, elsewhere = known[word]
        familiar = english >= FAMILIAR and english >= elsewhere
        return familiar or (english >= LEAST_ENGLISH and word in dictionary)

    return {
        word
        for word in words
        if is_english(word)
        and not _UNWANTED.search(word)
        and not profanity.contains_profanity(word)
    }


def patterns(word: str) -> Iterator[str]:
    """What a word shares with exactly those that one edit makes of it."""
    for place in range(len(word) + 1):
        yield f"{word[:place]}?{word[place:]}"
        if place < len(word):
            yield f"{word[:place]}?{word[place + 1 :]}"


def spaced(words: list[str]) -> list[str]:
    """The words in order, less those one edit away from an earlier one."""
    taken: set[str] = set()
    kept = []
    for word in words:
        own = set(patterns(word))
        if own.isdisjoint(taken):
            taken |= own
            kept.append(word)
    return kept


def main() -> int:
    sets = {name: vocabulary(name) for name in VOCABULARIES}
    shared = set.intersection(*sets.values())
    known = frequencies(shared)
    english = acceptable(shared, known)
    ranked = sorted(english, key=lambda word: (max(known[word]), word))
    apart = spaced(ranked)
    chosen = apart[:SIZE]
    if len(chosen) < SIZE:
        print(f"only {len(chosen)} words qualify", file=sys.stderr)
        return 1
    text = "\n".join(sorted(chosen)) + "\n"
    TARGET.write_text(text, "ascii")
    for name, words in sets.items():
        print(f"{name}: {len(words)} words of one token")
    print(f"in all: {len(shared)}; English and harmless: {len(english)}; apart: {len(apart)}")
    print(f"most frequent word taken: {chosen[-1]}, Zipf {max(known[chosen[-1]]):.2f}")
    print(f"share of English text: {sum(10 ** (known[word][0] - 9) for word in chosen):.4f}")
    print(f"sha256: {hashlib.sha256(text.encode()).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
