"""What a run of foreign text in an answer means.

Thresholds are normal bytes covered without a gap by windows that one other tenant alone sent
(research/detection.md 3.6 and 4). What windows cover is less than what was copied, on average by
about 20 bytes, as only sampled windows are known. Measured rates are in docs/fingerprints.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gateway.core.fingerprint.index import Kind
from gateway.core.fingerprint.shingles import WINDOW

CHECK: Final = "fingerprints"


class Strength(IntEnum):
    """How much the runs of one answer prove together."""

    NONE = 0
    WEAK = 1  # counts for the backend only
    STRONG = 2  # the answer is not to be trusted


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Lengths in normal bytes from which a run is weak, strong, or strong as one of two.

    ``answer``: from which a run of another tenant's answer is strong; shorter ones count for
    nothing, since like questions have like answers.
    """

    weak: int = 96
    pair: int = 80
    strong: int = 112
    answer: int = 256


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of an answer, every window of which one other tenant sent; ``length`` in bytes.

    ``first`` is the hash of its first window, by which the same stretch is known in two channels.
    """

    tenant: int
    kind: Kind
    first: int
    length: int = WINDOW


def strength(runs: Iterable[Run], limits: Thresholds) -> Strength:
    """What these runs prove. The same stretch found in two channels counts once."""
    found = Strength.NONE
    halves: dict[int, set[int]] = {}
    for run in runs:
        if run.length >= (limits.answer if run.kind is Kind.ANSWER else limits.strong):
            return Strength.STRONG
        if run.kind is Kind.ANSWER:
            continue
        if run.length >= limits.weak:
            found = Strength.WEAK
        if run.length >= limits.pair:
            stretches = halves.setdefault(run.tenant, set())
            stretches.add(run.first)
            if len(stretches) > 1:
                return Strength.STRONG
    return found
