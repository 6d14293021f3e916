"""A backend's standing: serving, suspect, quarantined. A pure state machine; time is an argument.

The rules (research/detection.md, decisions 8 and section 4):

- evidence that is certain, and that no tenant could bring about, quarantines at once;
- any other certain or strong evidence makes the backend suspect: long prompts, by which the
  incident leaked, are no longer sent there;
- suspicion is corroborated, and the backend quarantined, by evidence from another check or in
  another tenant's answer within ``window``. One tenant repeating one finding proves nothing: it
  may be framing the backend;
- weak evidence moves nothing;
- a quarantine ends by an operator's or a clean probe's word, suspicion also by time;
- what may be taken out is capped (``within_share``), or framing would be a denial of service.

Every change is a function from one frozen ``Standing`` to the next, so that a store shared by
several gateways can apply them as well as this process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.types import Evidence

CANARY = "canary"  # the reason that keeps traffic off one that was not probed yet
CLUES_KEPT = 16  # more corroborate nothing that these do not


class State(StrEnum):
    """What a backend may be sent: everything, short prompts, nothing."""

    SERVING = "serving"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator set. Times in seconds, ``floor`` in tokens.

    ``floor``: the longest prompt a suspect backend is sent. ``window``: how long a clue counts,
    and so how long suspicion lasts without another. ``max_share``: of the backends of a model,
    how many may be taken out without an operator.
    """

    floor: int = 4096
    window: float = 3600.0
    max_share: float = 0.5


@dataclass(frozen=True, slots=True)
class Clue:
    """One finding, as far as standing depends on it. ``tenant`` is whose answer showed it."""

    at: float
    check: str
    tenant: str
    evidence: Evidence
    forgeable: bool
    incident: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a backend stands, since when and why. ``capped``: only the cap keeps it from worse."""

    state: State = State.SERVING
    since: float = 0.0
    reason: str = ""
    clues: tuple[Clue, ...] = ()
    capped: bool = False


def reported(standing: Standing, clue: Clue, rules: Rules, *, may_take_out: bool) -> Standing:
    """The standing after a clue. ``may_take_out``: whether the cap leaves room for it.

    A quarantined backend stays so; the clue is kept for the operator.
    """
    standing = at(standing, clue.at, rules)
    if clue.evidence is Evidence.WEAK:
        return standing
    convicts = _convicts(standing.clues, clue)
    kept = replace(standing, clues=(*standing.clues, clue)[-CLUES_KEPT:])
    if standing.state is State.QUARANTINED:
        return kept
    if convicts and may_take_out:
        return _moved(kept, State.QUARANTINED, clue)
    if standing.state is State.SUSPECT:
        return replace(kept, capped=standing.capped or convicts)
    return replace(_moved(kept, State.SUSPECT, clue), capped=convicts)


def at(standing: Standing, now: float, rules: Rules) -> Standing:
    """The standing at ``now``: old clues no longer count, and suspicion without any is over."""
    clues = tuple(clue for clue in standing.clues if now - clue.at < rules.window)
    if standing.state is State.SUSPECT and not clues:
        return Standing(State.SERVING, now, "no further finding")
    return standing if clues == standing.clues else replace(standing, clues=clues)


def released(now: float, by: str) -> Standing:
    """The standing after an operator's or a clean probe's word: nothing is held against it."""
    return Standing(State.SERVING, now, f"released by {by}")


def awaiting(standing: Standing) -> Standing:
    """The standing of a canary whose processes no probe has found clean yet: as quarantined."""
    if standing.state is State.QUARANTINED:
        return standing
    return replace(standing, state=State.QUARANTINED, reason=CANARY)


def within_share(
    name: str,
    serving: Mapping[str, Collection[str]],
    quarantined: Iterable[str],
    max_share: float,
) -> bool:
    """Whether ``name`` may be taken out too: of no model's backends are then more than the share.

    ``serving``: the backends of each model that ``name`` serves.
    """
    out = {name, *quarantined}
    return all(len(out & set(names)) <= max_share * len(names) for names in serving.values())


def _convicts(clues: Iterable[Clue], clue: Clue) -> bool:
    if clue.evidence is Evidence.CERTAIN and not clue.forgeable:
        return True
    return any(before.check != clue.check or before.tenant != clue.tenant for before in clues)


def _moved(standing: Standing, state: State, clue: Clue) -> Standing:
    return replace(standing, state=state, since=clue.at, reason=clue.check, capped=False)
