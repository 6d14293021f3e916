"""cached_tokens against what this tenant has ever sent: nobody can have cached the rest for it.

With a salt of the tenant's own, the prefix cache can hold for it only what it sent itself. So an
engine that reports ``c`` cached of ``T`` prompt tokens, while ``U`` tokens of the prompt's text
were never sent by this tenant before, has reused another's pages if

    c + U > T + slack

(research/detection.md 3.2, turned round: not the known prefix is bounded from above, which would
need the template's order, but the unknown text from below, wherever the template puts it). What is
not known to be unseen (the template, tools, the assistant's turns) counts as seen. ``slack`` is for
text cut in the middle, which splits into a few tokens more by itself.

The memory forgets in the safe direction: its hash collisions make text look seen, never unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.core.prefixes import DIGEST, reach
from gateway.types import ChatPrompt, CheckResult, ParsedRequest, Usage, Verdict

CHECK = "cached_tokens"
SLACK = 16  # tokens
SLACK_EACH = 2  # tokens more for each text
TELLING = 1024  # bytes of unseen text by which a report that counts too much would show
PROOFS = 16  # reports that could have been false and were not, before one is called a leak

_WORDS = 2**19  # of a generation: 4 MiB, at 16 bits a digest for 2 million, 512 MB of text or more
_PER_GENERATION = _WORDS * 64 // 16
_SLICE = 1024  # digests at a time: well under a millisecond, so that no thread holds up another
_FEW = 8  # digests that are taken quicker one by one than by arrays

Words = npt.NDArray[np.uint64]
_ONE, _LAST_PLACE = np.uint64(1), np.uint64(63)
_SHIFTS = np.array([0, 6, 12, 18], np.uint64)
_HALVES = Struct(f"<{DIGEST // 8}Q")  # of a digest: one for the word, one for the bits


class PromptMemory:
    """Which digests were seen before. Two Bloom filters; when one is full, the older is dropped.

    A digest sets four bits of one word: memory is slow, and so it is asked once.

    A thread may use it while another does: each change is one call that holds the interpreter.
    """

    def __init__(self) -> None:
        self._young, self._old = _empty(), _empty()
        self._held = 0

    def take(self, chains: Sequence[Sequence[bytes]]) -> list[int]:
        """How many of each text's first digests were there before; all are from now on.

        ``chains``: of each text what ``prefixes.chain`` gives. About 0.1 us a digest.
        """
        joined = b"".join([digest for each in chains for digest in each])
        few = len(joined) <= _FEW * DIGEST
        seen = self._take_each(joined) if few else self._take_all(joined)  # a byte a digest
        known, begin = [], 0
        for each in chains:
            end = begin + len(each)
            first_new = seen.find(b"\0", begin, end)
            known.append((end if first_new < 0 else first_new) - begin)
            begin = end
        return known

    def _take_each(self, joined: bytes) -> bytes:
        halves = _HALVES.iter_unpack(joined)
        marks = [(word % _WORDS, _four_bits_of_one(drawn)) for word, drawn in halves]
        young, old = self._young.item, self._old.item
        seen = [young(at) & bits == bits or old(at) & bits == bits for at, bits in marks]
        words, bits = [at for at, _ in marks], np.array([bits for _, bits in marks], np.uint64)
        self._add(np.array(words, np.intp), bits)
        return bytes(seen)

    def _take_all(self, joined: bytes) -> bytes:
        digests = np.frombuffer(joined, "<u8").reshape(-1, DIGEST // 8)
        slices = (digests[at : at + _SLICE] for at in range(0, len(digests), _SLICE))
        return b"".join([self._take_slice(each) for each in slices])

    def _take_slice(self, digests: Words) -> bytes:
        words, bits = (digests[:, 0] % _WORDS).astype(np.intp), _four_bits(digests[:, 1])
        seen = _holds(self._young[words], bits) | _holds(self._old[words], bits)
        self._add(words, bits)
        return seen.tobytes()

    def _add(self, words: npt.NDArray[np.intp], bits: Words) -> None:
        if self._held >= _PER_GENERATION:
            self._old, self._young, self._held = self._young, _empty(), 0
        # Also what only the old one holds: it is in use, and must outlive it.
        np.bitwise_or.at(self._young, words, bits)
        self._held += len(words)


def _empty() -> Words:
    return np.zeros(_WORDS, np.uint64)


def _holds(words: Words, bits: Words) -> npt.NDArray[np.bool_]:
    return np.asarray(words & bits == bits)


def _four_bits(drawn: Words) -> Words:
    """Up to four bits of a word, each by six bits of ``drawn``."""
    places = (drawn[:, np.newaxis] >> _SHIFTS) & _LAST_PLACE
    return np.asarray(np.bitwise_or.reduce(_ONE << places, axis=1))


def _four_bits_of_one(drawn: int) -> int:
    """The same, without arrays."""
    first, second = 1 << drawn % 64, 1 << (drawn >> 6) % 64
    third, fourth = 1 << (drawn >> 12) % 64, 1 << (drawn >> 18) % 64
    return first | second | third | fourth


def unseen(parts: Sequence[bytes], known_steps: Sequence[int]) -> tuple[str, ...]:
    """What of each text is new for certain: the step after the known may not be.

    ``parts`` are the texts as ``prefixes.encoded`` has them. A character that is cut is left out.
    """
    rests = (
        str(memoryview(part)[reach(known) :], "utf-8", "ignore").strip()
        for part, known in zip(parts, known_steps, strict=True)
    )
    return tuple(rest for rest in rests if rest)


# --- what of a request is surely in the prompt as it stands --------------------------------------


def texts_of(request: ParsedRequest) -> tuple[str, ...] | None:
    """The texts of a chat that every template renders whole: not the assistant's, not tools.

    The assistant's turns may be cached from the answers they were. None for a plain prompt, in
    which the same part cannot be told.
    """
    if not isinstance(request.prompt, ChatPrompt):
        return None
    body = request.body
    texts = [text for name in ("system", "instructions") for text in _texts(body.get(name))]
    for name in ("messages", "input"):
        turns = body.get(name)
        if isinstance(turns, str):
            texts.append(turns)
        for turn in turns if isinstance(turns, list) else ():
            if isinstance(turn, dict) and turn.get("role") not in (None, "assistant"):
                texts += _texts(turn.get("content"))
    return tuple(texts)


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text


# --- the verdict ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """What the engine said and what we know: ``prompt`` tokens by our exact count."""

    prompt: int
    cached: int
    unseen: tuple[str, ...]

    @property
    def telling(self) -> bool:
        """Whether a report that is too high would have shown here."""
        return _bytes(self.unseen) >= TELLING


def report(prompt: int, usage: Usage | None, unseen: tuple[str, ...]) -> Report | CheckResult:
    """The numbers to judge, or why there are none."""
    if usage is None or usage.cached_tokens is None:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "not_reported")
    if usage.prompt_tokens != prompt:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "count_differs")
    return Report(prompt, usage.cached_tokens, unseen)


def fits_by_bytes(told: Report) -> bool:
    """Whether it is possible whatever the tokens of the unseen text: none has less than a byte."""
    return told.cached + _bytes(told.unseen) <= told.prompt or told.cached == 0


def judge_cached(told: Report, unseen_tokens: int, *, proved: int) -> CheckResult:
    """The verdict once the unseen text is counted. ``proved``: earlier reports that held.

    An engine that counts as cached what it transferred or preempted would violate this always;
    before enough reports held, a violation says nothing.
    """
    most = told.prompt - unseen_tokens + SLACK + SLACK_EACH * len(told.unseen)
    if told.cached <= most:
        return CheckResult(CHECK, Verdict.OK, "", most, told.cached)
    if proved < PROOFS:
        return CheckResult(CHECK, Verdict.UNVERIFIABLE, "unproven", most, told.cached)
    return CheckResult(CHECK, Verdict.LEAK, "never_sent", most, told.cached, True)


def _bytes(texts: Sequence[str]) -> int:
    return sum(
        len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        for text in texts
    )
