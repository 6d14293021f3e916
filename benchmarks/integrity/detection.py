"""What fingerprints find and what they take for a find, on text of this machine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from benchmarks.integrity import local_texts
from benchmarks.integrity.stats import share
from gateway.core.fingerprint.index import Index, Kind
from gateway.core.fingerprint.matcher import Matcher
from gateway.core.fingerprint.normal import normal_slices
from gateway.core.fingerprint.shingles import KnownText, Scheme, entries_for, sample
from gateway.core.fingerprint.verdict import Strength, Thresholds
from gateway.tokens.assets import AssetStore
from gateway.tokens.libraries import load_encoder

SCHEME = Scheme(b"benchmark")
NOTHING = KnownText(SCHEME, [])
POOL_TOKENS = 681_280
REMEMBERED = 4 * POOL_TOKENS
ANSWER_CHARS = 2_000
RUNS = (12, 16, 24, 32, 40, 48, 64, 80, 128)  # tokens copied
LENGTHS = (64, 80, 96, 112, 128, 160)  # normal bytes covered
STRANGER = 10_000  # the number of a tenant who sent nothing


@dataclass(frozen=True)
class Found:
    """One answer: how it is judged, and the longest run found in it."""

    strength: Strength
    length: int


class Detector:
    """An index of some sources, each a tenant, as the gateway would have it."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.index = Index(entries_for(REMEMBERED))
        self.texts = [normal(text) for text in sources.values()]
        for number, text in enumerate(sources.values()):
            for _ in self.index.add(number, Kind.PROMPT, sample(SCHEME, [text])):
                pass

    def judge(self, answer: str, public: KnownText | None = None) -> Found:
        """The answer, as a whole, to somebody who sent none of it."""
        matcher = Matcher(SCHEME, self.index, STRANGER, public)
        matcher.feed("content", answer)
        matcher.settle(NOTHING)
        matcher.end()
        longest = matcher.longest
        return Found(matcher.strength, longest.length if longest else 0)

    def is_copied(self, answer: str, least: int) -> bool:
        """Whether so many normal bytes in a row of the answer are in one tenant's text."""
        wanted = normal(answer)
        return any(
            wanted[at : at + least] in text
            for text in self.texts
            for at in range(len(wanted) - least + 1)
        )


def normal(text: str) -> bytes:
    """The whole text in normal form."""
    return b"".join(normal_slices([text]))


def apart(sources: Mapping[str, str]) -> dict[str, str]:
    """Sources without those that are, to a twentieth, copies of one before them.

    Installed packages carry copies of each other. Text that two tenants have is no leak, and would
    be counted as one missed.
    """
    kept: dict[str, str] = {}
    seen = Index(entries_for(4 * REMEMBERED))
    for number, (name, text) in enumerate(sources.items()):
        hashes = sample(SCHEME, [text])
        known = len(seen.hits(hashes, 0, STRANGER))
        if known < len(hashes) / 20:
            kept[name] = text
            for _ in seen.add(number, Kind.PROMPT, hashes):
                pass
    return kept


def recall(detector: Detector, sources: Mapping[str, str], trials: int) -> Iterator[dict[str, Any]]:
    """A row for each length: runs of so many tokens of a tenant's text, in an answer of others'."""
    encoder = load_encoder(AssetStore.open().resolve("qwen3"))
    rng = random.Random(40)
    names = list(sources)
    for tokens in RUNS:
        found, sizes = [], []
        for _ in range(trials):
            run = _run_of(sources[rng.choice(names)], tokens, encoder, rng)
            sizes.append(len(normal(run)))
            before, after = local_texts.filler(120, rng), local_texts.filler(120, rng)
            found.append(detector.judge(f"{before} {run} {after}"))
        yield {
            "tokens": tokens,
            "bytes": round(sum(sizes) / trials),
            "any": share(sum(each.length > 0 for each in found), trials),
            "weak": share(sum(each.strength >= Strength.WEAK for each in found), trials),
            "strong": share(sum(each.strength is Strength.STRONG for each in found), trials),
        }


def _run_of(text: str, tokens: int, encoder: Any, rng: random.Random) -> str:
    """So many tokens from somewhere in a text, cut where tokens end."""
    begin = rng.randrange(max(1, len(text) - 12 * tokens))
    low, high = tokens, 12 * tokens
    while low < high:
        middle = (low + high) // 2
        if encoder.count(text[begin : begin + middle]) < tokens:
            low = middle + 1
        else:
            high = middle
    return text[begin : begin + low]


def false_alarms(
    detector: Detector, sources: Iterable[str], most: int, public: KnownText | None = None
) -> dict[str, Any]:
    """Answers made of others' text, and what is found in them.

    ``copies`` are those of the strong findings that are none: the text is in a tenant's, word for
    word, as licences and copied comments are.
    """
    every = (each for text in sources for each in local_texts.chunks(text, ANSWER_CHARS))
    answers = list(islice(every, most))
    found = [detector.judge(each, public) for each in answers]
    strong = [
        answer
        for answer, each in zip(answers, found, strict=True)
        if each.strength is Strength.STRONG
    ]
    return {
        "answers": len(answers),
        "strong": share(len(strong), len(answers)),
        "copies": sum(detector.is_copied(answer, Thresholds().pair) for answer in strong),
        "weak": share(sum(each.strength >= Strength.WEAK for each in found), len(answers)),
        "by_length": {
            str(least): share(sum(each.length >= least for each in found), len(answers))
            for least in LENGTHS
        },
    }
