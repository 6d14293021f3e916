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

Several gateways come to one view: a ``Case`` is what is known of a backend, and ``merged`` of any
number of cases is the same in whatever order and however often they are merged. Only the cap needs
an order of its own (``agreed``): who is first to write takes a backend out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, nextafter
from typing import Final

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


@dataclass(frozen=True, slots=True, order=True)
class Clue:
    """One finding, as far as standing depends on it. ``tenant`` is whose answer showed it.

    ``at`` is in seconds since 1970. An empty ``tenant`` is one that cannot be told from others.
    """

    at: float
    check: str
    tenant: str
    evidence: Evidence
    forgeable: bool
    incident: str = ""

    @property
    def convicts(self) -> bool:
        """Whether it needs no other."""
        return self.evidence is Evidence.CERTAIN and not self.forgeable


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """When something was decided, in seconds since 1970, and why or by whom."""

    at: float
    why: str


NEVER: Final = Mark(-1.0, "")


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of a backend: its last release, the clues since, whether it was taken out.

    Clues are ordered by time; of those alike in check, tenant and weight the latest is kept, so
    that a tenant that repeats itself displaces nobody else's.
    """

    released: Mark = NEVER
    clues: tuple[Clue, ...] = ()
    out: Mark | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a backend stands, since when and why. ``capped``: only the cap keeps it from worse."""

    state: State = State.SERVING
    since: float = 0.0
    reason: str = ""
    clues: tuple[Clue, ...] = ()
    capped: bool = False


NOTHING: Final = Case()
_CLEAN: Final = Standing()

BackendKey = tuple[str, str]  # a backend's name and URL


def merged(one: Case, other: Case) -> Case:
    """What both know. A release ends what was found up to its time, whoever knew of it.

    Commutative, associative and idempotent: clocks of gateways need not agree for that.
    """
    released = max(one.released, other.released)
    outs = [case.out for case in (one, other) if case.out and case.out.at > released.at]
    clues = _kept(clue for clue in (*one.clues, *other.clues) if clue.at > released.at)
    return Case(released, clues, max(outs, default=None))


def reported(case: Case, clue: Clue) -> Case:
    """The case after a clue; weak evidence moves nothing.

    Its time is after the last release, whatever the clock of who found it says.
    """
    if clue.evidence is Evidence.WEAK:
        return case
    at = max(clue.at, nextafter(case.released.at, inf))
    return merged(case, Case(clues=(replace(clue, at=at),)))


def release(case: Case, now: float, by: str) -> Case:
    """The case after an operator's or a clean probe's word: nothing is held against it.

    Its time is not before anything it ends.
    """
    ended = [clue.at for clue in case.clues] + ([case.out.at] if case.out else [])
    return Case(Mark(max([now, case.released.at, *ended]), by))


def standing(case: Case, now: float, rules: Rules) -> Standing:
    """Where a backend stands at ``now``: old clues do not count; suspicion without any is over."""
    if case == NOTHING:
        return _CLEAN
    clues = counting(case, now, rules)
    if case.out is not None:
        return Standing(State.QUARANTINED, case.out.at, case.out.why, clues)
    if clues:
        first = clues[0]
        capped = convicted(clues)
        return Standing(State.SUSPECT, first.at, first.check, clues, capped)
    if case.clues:
        ended = case.clues[-1].at + rules.window
        return Standing(State.SERVING, ended, "no further finding")
    return Standing(State.SERVING, case.released.at, f"released by {case.released.why}")


def counting(case: Case, now: float, rules: Rules) -> tuple[Clue, ...]:
    """The clues that are not too old."""
    return tuple(clue for clue in case.clues if now - clue.at < rules.window)


def convicted(clues: Collection[Clue]) -> bool:
    """Whether these clues take a backend out, where the cap leaves room."""
    checks = {clue.check for clue in clues}
    tenants = {clue.tenant for clue in clues if clue.tenant}
    return len(checks) > 1 or len(tenants) > 1 or any(clue.convicts for clue in clues)


def agreed(
    shared: Mapping[BackendKey, Case],
    local: Mapping[BackendKey, Case],
    peers: Mapping[BackendKey, Mapping[str, Collection[str]]],
    now: float,
    rules: Rules,
) -> dict[BackendKey, Case]:
    """The cases of ``shared`` and ``local`` together, with who is taken out decided.

    Those whom ``shared`` has out stay out. Then those go out that were taken out locally, and those
    that are convicted with clues that ``shared`` has not, in the order of their times, as long as
    the cap leaves room: nothing here is in force until ``shared`` has it. ``peers`` are the
    backends that serve now, with the names that serve each of their models; others are not judged.
    """
    cases = dict(shared)
    wanted: list[tuple[bool, Mark, BackendKey]] = []
    for key in {*shared, *local}:
        theirs, mine = shared.get(key, NOTHING), local.get(key, NOTHING)
        case = cases[key] = merged(theirs, replace(mine, out=None))
        if case.out is not None:
            continue
        clues = counting(case, now, rules)
        if mine.out is not None and mine.out.at > case.released.at:
            wanted.append((False, mine.out, key))
        elif case.clues != theirs.clues and convicted(clues):
            wanted.append((True, Mark(clues[-1].at, clues[-1].check), key))
    for is_new, mark, key in sorted(wanted):
        out = {at[0] for at in peers if cases.get(at, NOTHING).out is not None}
        if key not in peers:
            room = not is_new
        else:
            room = within_share(key[0], peers[key], out, rules.max_share)
        if room:
            cases[key] = replace(cases[key], out=mark)
    return cases


def pruned(case: Case, now: float, rules: Rules) -> Case:
    """The case without clues that are too old."""
    return replace(case, clues=counting(case, now, rules))


def of_unknown_tenants(case: Case) -> Case:
    """The case once tenants have other pseudonyms, by which its clues cannot be told apart."""
    return replace(case, clues=_kept(replace(clue, tenant="") for clue in case.clues))


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


def _kept(clues: Iterable[Clue]) -> tuple[Clue, ...]:
    latest = {(clue.check, clue.tenant, clue.convicts): clue for clue in sorted(clues)}
    return tuple(sorted(latest.values())[-CLUES_KEPT:])
