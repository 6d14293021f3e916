"""What a byte-level BPE saves on a text at least: a proved bound far below its bytes, in no time.

Merging ends when no two neighbouring tokens of one pre-token can be merged (a pre-token that is
in the vocabulary as a whole may become one token by itself; that only makes fewer). Of the places
between two neighbouring bytes, N - 1 in a text of N bytes, each that is *not* a border between
tokens saves one of the N tokens that bytes alone would cost. Four kinds of places are counted:

* *Glued*: the pair of bytes at the place is a merge, and no border of pre-tokens or added tokens
  can lie there. If this place and the two next to it were all borders, the two bytes would be
  tokens by themselves, side by side in one pre-token, and mergeable: a contradiction. So of these
  three places one is no border. One place can serve three glued ones: each counts 1/3.
* Glued *inside a character* of two or three bytes: no splitting pattern cuts a character. Places
  between characters that are not ASCII are never counted as glued, nor is the first place in one
  of four bytes, so of any three places in a row at most two are glued, whose halves no other
  shares: each counts 1/2.
* *Digits*, where the pattern takes ``\\p{N}{1,3}`` and each of the 1,110 runs of one to three ASCII
  digits is one token, by trial at load: k digits are ceil(k/3) tokens, which saves at least 2/3
  of the k - 1 places. For ASCII texts only: other digits would shift the groups. A place beside
  them is never glued.
* *Three spaces* in a row. ``\\s+(?!\\S)`` cuts a run of white space before its last character at
  most, and ``\\s*[\\r\\n]+`` after a line's end, so the first place is no border of pre-tokens: it
  is glued. If moreover no run touches other white space but a line's end before it, and each run
  of so many spaces is one token, by trial at load, then it is no border at all, and counts 1.
  (Not where the pattern has ``\\s++$``: that takes a line's end and the spaces after it together.)

By linear programming duality the counts add up: no place that is no border pays more than 1.

That letters, signs and line ends are glued is shown for the split patterns listed here, one by
one; for others only the insides of characters count. In the GPT-4 patterns a run of letters is cut
nowhere but after a contraction: the letters after an apostrophe are in one place no border too
few, which is taken back. In GPT-4o's, also before an upper-case letter after a lower-case one,
and a run of signs is cut after a slash. DeepSeek's takes ASCII letters after a sign without
regard to contractions. All take one space with the letters or signs after it, and line ends with
the signs or white space before them.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pair = tuple[int, int]

NFC_GROWTH = 3  # UTF-8 bytes of the NFC form to those of the text, at most (Unicode UAX #15)
PART_CHARS = 1 << 13  # at least so much is taken to be out of NFC where a character is
BLOCK_BYTES = 1 << 17  # what is looked at in one go: fits the processor's second cache
SIXTHS = 6
THIRD, HALF, TWO_THIRDS = 2, 3, 4  # what a place counts, in sixths of a token

_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)

_LETTERS = string.ascii_letters.encode()
_LOWER, _UPPER = string.ascii_lowercase.encode(), string.ascii_uppercase.encode()
_SIGNS = string.punctuation.encode()
_DIGITS = string.digits.encode()
_SPACE, _APOSTROPHE, _SLASH = b" '/"
_LINE_ENDS = b"\r\n"
_CONTRACTED = b"sdmtlvrSDMTLVR"  # how a contraction can go on in ASCII
_CONTINUATION = range(0x80, 0xC0)
_LEADS_OF_2_OR_3 = range(0xC2, 0xF0)
_LONGEST_RUN = 512  # spaces; no vocabulary at hand has a longer token


def tokens_at_most(text: str, savings: Savings | None, *, composes: bool, limit: int | None) -> int:
    """A number of tokens that the text cannot exceed; savings are left out within ``limit``.

    Every token stands for at least one byte of the normalised text. ``composes``: that is NFC.
    It changes nothing in a text that is in NFC, nor in any part of it, and else lets it grow to
    three times the bytes (U+1D1C0 reaches it). It changes nothing across a line feed either,
    which composes with nothing, so only parts that are not in NFC are charged with the growth.

    Raises:
        UnicodeEncodeError: a lone surrogate.
    """
    if text.isascii() and limit is not None and len(text) <= limit:
        return len(text)  # without a copy
    if not composes or unicodedata.is_normalized("NFC", text):
        data = text.encode()
        if savings is None or (limit is not None and len(data) <= limit):
            return len(data)
        return len(data) - savings.of(data)
    return sum(
        tokens_at_most(part, savings, composes=False, limit=None)
        if unicodedata.is_normalized("NFC", part)
        else NFC_GROWTH * len(part.encode())
        for part in _parts(text)
    )


def _parts(text: str) -> Iterator[str]:
    """The text cut after line feeds."""
    start = 0
    while (end := text.find("\n", start + PART_CHARS) + 1) > 0:
        yield text[start:end]
        start = end
    yield text[start:]


@dataclass(frozen=True, slots=True)
class Splitting:
    """What is known of a split pattern."""

    camel_case: bool = False  # cuts before an upper-case letter after a lower-case one
    slashes: bool = False  # cuts a run of signs after a slash
    contractions: bool = True  # cuts after a contraction
    digits: int = 3  # at most in one pre-token
    space_runs: bool = True  # spaces after a line's end are a pre-token of their own

    def keeps(self) -> Iterable[Pair]:
        """Pairs of ASCII bytes that it never cuts between, contractions aside."""
        for first in _LETTERS:
            for second in _LETTERS:
                if not (self.camel_case and first in _LOWER and second in _UPPER):
                    yield first, second
        for first in _SIGNS:
            if not (self.slashes and first == _SLASH):
                yield from ((first, second) for second in _SIGNS)
        for second in _LETTERS + _SIGNS:
            yield _SPACE, second
        for first in _SIGNS + b" \t" + _LINE_ENDS:
            yield from ((first, second) for second in _LINE_ENDS)


SPLITTINGS: Mapping[tuple[str, ...], Splitting] = {
    (_CL100K,): Splitting(space_runs=False),
    (_GPT4 % "",): Splitting(digits=1),
    (_GPT4 % "{1,3}",): Splitting(),
    (_GPT4O,): Splitting(camel_case=True, slashes=True),
    _DEEPSEEK: Splitting(contractions=False),
}


@dataclass(frozen=True, slots=True)
class Savings:
    """What one tokenizer's places count, in sixths of a token.

    ``weights``: by pair of bytes, at 256 * first + second; ``ascii_weights``: in ASCII texts.
    ``space``: what the first of three spaces counts by being glued. ``longest_run``: so many
    spaces, and fewer, are one token; 0 where that is not known.
    """

    weights: NDArray[np.int8]
    ascii_weights: NDArray[np.int8]
    space: int
    longest_run: int

    def of(self, data: bytes) -> int:
        """Tokens that UTF-8 text, normalised, surely has fewer than bytes.

        About 1 ms a megabyte, nearly all of it without the GIL.
        """
        plain = data.isascii()
        weights = self.ascii_weights if plain else self.weights
        view = np.frombuffer(data, np.uint8)
        pairs = triples = astray = 0
        for start in range(0, len(view), BLOCK_BYTES):
            block = view[start : start + BLOCK_BYTES + 1]
            pairs += _pairs(block, weights)
            if self.space:
                around = view[max(0, start - 1) : start + BLOCK_BYTES + 3]
                found, beside = _triples(around, at_start=start == 0)
                triples += found
                astray += beside
        whole_runs = not astray and b" " * (self.longest_run + 1) not in data
        space = SIXTHS if self.longest_run and whole_runs else self.space
        return max(0, -(-(pairs + space * triples) // SIXTHS))


def _pairs(block: NDArray[np.uint8], weights: NDArray[np.int8]) -> int:
    index = block[:-1].astype(np.uint16)
    index <<= 8
    index |= block[1:]
    return int(np.take(weights, index).sum(dtype=np.int64))


def _triples(view: NDArray[np.uint8], *, at_start: bool) -> tuple[int, int]:
    """Places that begin three spaces, and those of them beside white space that may join the run.

    ``view`` has one byte before the block, unless ``at_start``, and up to three after it.
    """
    spaces = view == _SPACE
    found = spaces[:-2] & spaces[1:-1] & spaces[2:]
    blank = ((view - np.uint8(9)) < 5) | (view > 127)  # \t \n \v \f \r, and what may be one
    tied = blank & (view != 10) & (view != 13)
    after = np.count_nonzero(found[:-1] & blank[3:])
    before = np.count_nonzero(found[1:] & tied[: max(0, len(found) - 1)])
    own = found if at_start else found[1:]
    return int(np.count_nonzero(own[:BLOCK_BYTES])), int(after + before)


def savings_of_json(spec: Mapping[str, Any], length: Callable[[str], int]) -> Savings | None:
    """For a parsed ``tokenizer.json`` that only splits before it merges; None: nothing is proved.

    ``length`` counts the tokens of a text.
    """
    model, added = spec["model"], spec.get("added_tokens", ())
    if not _plain_bpe(model) or any(_reaches_out(token) for token in added):
        return None
    return _savings(
        merges=frozenset(_byte_merges(model["merges"])),
        splitting=SPLITTINGS.get(_patterns(spec.get("pre_tokenizer"))),
        added=[token["content"] for token in added],
        length=length,
    )


def savings_of_ranks(
    ranks: Mapping[bytes, int],
    pattern: str,
    special: Collection[str],
    length: Callable[[str], int],
) -> Savings:
    """For a tiktoken encoding: all that stands in the vocabulary is a merge."""
    pairs = frozenset((token[0], token[1]) for token in ranks if len(token) == 2)
    return _savings(
        merges=pairs, splitting=SPLITTINGS.get((pattern,)), added=special, length=length
    )


def _savings(
    *,
    merges: frozenset[Pair],
    splitting: Splitting | None,
    added: Collection[str],
    length: Callable[[str], int],
) -> Savings:
    weights = np.zeros((256, 256), np.int8)
    for first, second in _inside_characters(merges):
        weights[first, second] = HALF
    if splitting is None:
        return Savings(weights.ravel(), weights.ravel(), space=0, longest_run=0)
    for first, second in merges.intersection(splitting.keeps()):
        weights[first, second] = THIRD
    for token in (text.encode() for text in added if text):
        weights[token[-1], :128] = 0  # an added token may end or begin at the place
        weights[:128, token[0]] = 0
    if splitting.contractions:
        weights[_APOSTROPHE, list(_CONTRACTED)] = -THIRD
    ascii_weights = weights.copy()
    if splitting.digits == 3 and _digits_are_tokens(length) and not _touch(added, _DIGITS):
        ascii_weights[np.ix_(list(_DIGITS), list(_DIGITS))] = TWO_THIRDS
    glued = (_SPACE, _SPACE) in merges and not _touch(added, b" ")
    return Savings(
        weights.ravel(),
        ascii_weights.ravel(),
        space=THIRD if glued else 0,
        longest_run=_longest_run(length) if glued and splitting.space_runs else 0,
    )


def _inside_characters(merges: Iterable[Pair]) -> Iterable[Pair]:
    """Merges of neighbours inside a character, but for the first place in one of four bytes."""
    for first, second in merges:
        inside = first in _LEADS_OF_2_OR_3 or first in _CONTINUATION
        if inside and second in _CONTINUATION:
            yield first, second


def _touch(added: Collection[str], characters: bytes) -> bool:
    """Whether an added token can end inside a run of these characters."""
    ends = {byte for text in added if text for byte in (text.encode()[0], text.encode()[-1])}
    return not ends.isdisjoint(characters)


def _digits_are_tokens(length: Callable[[str], int]) -> bool:
    runs = (f"{number:0{width}}" for width in (1, 2, 3) for number in range(10**width))
    return all(length(run) == 1 for run in runs)


def _longest_run(length: Callable[[str], int]) -> int:
    for size in range(1, _LONGEST_RUN + 1):
        if length(" " * size) != 1:
            return size - 1
    return _LONGEST_RUN


def _plain_bpe(model: Mapping[str, Any]) -> bool:
    """Whether merging ends only when nothing can be merged, and begins with the bytes."""
    return (
        model["type"] == "BPE"
        and not any(
            model.get(name)
            for name in (
                "dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"
            )
        )
        and all(symbol in model["vocab"] for symbol in byte_symbols())
    )  # fmt: skip


def _reaches_out(token: Mapping[str, Any]) -> bool:
    return bool(token.get("lstrip") or token.get("rstrip") or token.get("single_word"))


def _patterns(step: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The split patterns of a pre-tokenizer that splits and then maps bytes; empty for others."""
    steps = step["pretokenizers"] if step and step["type"] == "Sequence" else [step or {}]
    *splits, last = steps
    if last.get("type") != "ByteLevel" or last.get("use_regex") or last.get("add_prefix_space"):
        return ()
    found = [split["pattern"].get("Regex", "") for split in splits if _isolates(split)]
    escaped = (pattern.replace("\r", r"\r").replace("\n", r"\n") for pattern in found)
    return tuple(escaped) if len(found) == len(splits) else ()


def _isolates(split: Mapping[str, Any]) -> bool:
    return split["type"] == "Split" and split["behavior"] == "Isolated" and not split.get("invert")


def _byte_merges(merges: Iterable[str | list[str]]) -> Iterable[Pair]:
    """The merges of two single bytes, from their printable symbols."""
    byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if len(pair) == 2 and pair[0] in byte_of and pair[1] in byte_of:
            yield byte_of[pair[0]], byte_of[pair[1]]


def byte_symbols() -> list[str]:
    """GPT-2's printable character of each byte: itself, or one of those from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    others = {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [others.get(byte, chr(byte)) for byte in range(256)]
