"""Do our counts equal the engine's own on fixed prompts? And what follows where they do not.

A difference is told by the sample's name, never by its text. A question the engine does not answer
is no difference, and no agreement either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.core.capacity import Snapshot
from gateway.core.spotcheck import SUSPECT_SHARE
from gateway.types import AtLeast, Bounded, Counted, PromptLength, Unverifiable

CHATS_FOR_A_CONSTANT = 3  # fewer could agree on a difference by chance


class State(StrEnum):
    """What the last comparison showed."""

    UNKNOWN = "unknown"
    EXACT = "exact"
    DIFFERS = "differs"
    UNANSWERED = "unanswered"


class OnDifference(StrEnum):
    """What the operator wants where counts differ."""

    ENGINE = "engine"
    MARGIN = "margin"
    REFUSE = "refuse"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's settings. ``every`` is seconds (0: never), ``margin`` tokens."""

    every: float = 3600.0
    on_difference: OnDifference = OnDifference.ENGINE
    margin: int = 0
    learn_offset: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """One sample counted twice; ``theirs`` is None where the engine gave no count."""

    case: str
    is_chat: bool
    ours: int
    theirs: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A sample on which the counts differ."""

    case: str
    ours: int
    theirs: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """By how much we count too few, at worst: in tokens, and as a share of the engine's count."""

    tokens: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a comparison showed. ``at`` is the clock's seconds.

    ``constant``: every chat differs by just this and no text differs; 0 where that is not so.
    ``offset``: that constant where it was learnt, so that counts agree with it.
    ``credible``: False where the engine's counts sum to under half of ours, which no template
    explains: its tokeniser endpoint counts something else.
    """

    state: State = State.UNKNOWN
    agreed: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    unanswered: int = 0
    worst_under: Shortfall = Shortfall()
    constant: int = 0
    offset: int = 0
    credible: bool = True
    at: float | None = None

    @property
    def compared(self) -> int:
        """How many samples both have counted."""
        return len(self.agreed) + len(self.differences)


def identity(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """Changes when a worker is another process, or another worker; empty while none is known."""
    return tuple(
        (name, fact.incarnation) for name, seen in snapshot.workers.items() for fact in seen.facts
    )


def compare(
    pairs: Iterable[Pair], at: float, *, broken_off: bool = False, learn_offset: bool = False
) -> Calibration:
    """One comparison's outcome. ``broken_off``: the engine fell silent, so agreement proves little.

    With ``learn_offset`` a constant difference of all chats is taken over and the state is exact.
    """
    pairs = tuple(pairs)
    answered = [(pair, pair.theirs) for pair in pairs if pair.theirs is not None]
    differences = tuple(
        Difference(pair.case, pair.ours, theirs) for pair, theirs in answered if pair.ours != theirs
    )
    agreed = tuple(pair.case for pair, theirs in answered if pair.ours == theirs)
    found = Calibration(
        State.DIFFERS if differences else State.EXACT,
        agreed,
        differences,
        len(pairs) - len(answered),
        _worst_under(differences),
        _constant([pair for pair, _ in answered]),
        credible=sum(theirs for _, theirs in answered)
        >= SUSPECT_SHARE * sum(pair.ours for pair, _ in answered),
        at=at,
    )
    if not differences and (broken_off or not answered):
        return replace(found, state=State.UNANSWERED)
    if learn_offset and found.constant and found.credible and not broken_off:
        return replace(
            found,
            state=State.EXACT,
            agreed=tuple(pair.case for pair, _ in answered),
            differences=(),
            worst_under=Shortfall(),
            offset=found.constant,
        )
    return found


def succeed(before: Calibration, new: Calibration, *, same_engine: bool) -> Calibration:
    """What holds after a comparison.

    A difference holds until its samples were compared again and agree; exactness survives silence
    only of the engine it was found on.
    """
    if new.state is State.UNANSWERED:
        kept = before.state is State.DIFFERS or (same_engine and before.state is State.EXACT)
        return before if kept else new
    if before.state is State.DIFFERS and new.state is State.EXACT:
        settled = {difference.case for difference in before.differences} <= set(new.agreed)
        return new if settled else before
    return new


def consequence(found: Calibration, wanted: OnDifference) -> OnDifference:
    """What holds now; ``IGNORE`` where counts are as they are.

    An engine whose counts are not credible is not let to count: ours, which are larger, stay.
    """
    if found.state is not State.DIFFERS:
        return OnDifference.IGNORE
    if wanted is OnDifference.ENGINE and not found.credible:
        return OnDifference.MARGIN
    return wanted


def margin(found: Calibration, limit: int, configured: int) -> int:
    """Tokens to keep free below ``limit`` while counts differ; never more than the limit.

    A constant difference is kept free as it is. Any other is scaled: with ``s`` the worst
    (theirs - ours) / theirs, ``ceil(limit * s)`` is kept free, since ours <= limit * (1 - s) then
    means theirs <= ours / (1 - s) <= limit. That assumes that no prompt is counted short by a
    larger share than the worst sample.
    """
    worst = found.worst_under
    scaled = worst.tokens if found.constant else math.ceil(limit * worst.share)
    return min(limit, max(configured, scaled))


def shifted(length: PromptLength, offset: int) -> PromptLength:
    """A chat's length with a learnt offset; never below 0."""
    match length:
        case Counted(items):
            return Counted(tuple(max(0, item + offset) for item in items))
        case Bounded(longest, total):
            return Bounded(max(0, longest + offset), max(0, total + offset))
        case AtLeast(longest):
            return AtLeast(max(0, longest + offset))
        case Unverifiable():
            return length


def _worst_under(differences: Sequence[Difference]) -> Shortfall:
    under = [one for one in differences if one.theirs > one.ours]
    return Shortfall(
        max((one.theirs - one.ours for one in under), default=0),
        max(((one.theirs - one.ours) / one.theirs for one in under), default=0.0),
    )


def _constant(answered: Sequence[Pair]) -> int:
    chats = {(pair.theirs or 0) - pair.ours for pair in answered if pair.is_chat}
    texts_agree = all(pair.theirs == pair.ours for pair in answered if not pair.is_chat)
    enough = sum(pair.is_chat for pair in answered) >= CHATS_FOR_A_CONSTANT
    return chats.pop() if len(chats) == 1 and texts_agree and enough else 0
