"""When a backend is probed, and when clean probes end its quarantine. Pure; time is an argument.

The rule of release: clean full probes in a row, of the same processes and within one quarantine,
``Release.after`` of them or more, whose clean answers together exclude a leak rate over
``Release.bound``: 3/(m q) with q the low end of what the operator measured
(``gateway.core.probe.leak_bound``). Anything but a clean full probe begins the count anew, and so
does another process: what it will do says nothing of what the one before it did.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.core.probe import Detection, Exit, Report, leak_bound
from gateway.core.quarantine import State

MOST_DOUBLINGS = 16


class Occasion(StrEnum):
    """Why a backend is probed now."""

    START = "start"
    CHANGE = "change"
    SERVING = "serving"
    QUARANTINE = "quarantine"
    CANARY = "canary"


class Result(StrEnum):
    """How a run ended, also the metric label. ``BROKEN_OFF``: traffic came."""

    CLEAN = "clean"
    FAULT = "fault"
    COULD_NOT_RUN = "could_not_run"
    BROKEN_OFF = "broken_off"


@dataclass(frozen=True, slots=True)
class Release:
    """``after`` clean full probes at least, excluding leak rates over ``bound``."""

    after: int
    bound: float
    detection: Detection


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the operator set. Times in seconds.

    ``every``: between probes of a backend that serves; ``retry``: of one that does not.
    ``at_load``: requests it may have for a probe to run. ``quick``: the plan while it serves.
    """

    when: Collection[Occasion] = (Occasion.QUARANTINE,)
    every: float = 3600.0
    retry: float = 300.0
    at_load: int = 0
    quick: bool = True
    canary: bool = False
    release: Release | None = None


@dataclass(frozen=True, slots=True)
class Present:
    """A backend now. ``engine`` is ``capacity.digest``, empty while nobody has told.

    ``since``: when its standing began; only ever compared for equality.
    """

    engine: str
    state: State
    since: float
    load: int


@dataclass(frozen=True, slots=True)
class Due:
    """A probe that should run."""

    occasion: Occasion
    quick: bool


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that is over. ``answers``: clean ones that could have leaked."""

    result: Result
    engine: str
    quick: bool
    answers: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """What earlier runs leave behind. ``at``: the end of the last one.

    ``engine``: what was last probed to a verdict. ``cleared``: the processes whose last full probe
    was clean, or that an operator vouched for. ``streak``, ``answers``: clean full probes in a row
    of ``engine`` in the quarantine since ``case``, and their clean answers. ``tried``: the last run
    was in the standing since then. ``unclean``: runs in a row with a fault.
    """

    at: float | None = None
    last: Result | None = None
    occasion: Occasion | None = None
    engine: str = ""
    cleared: str = ""
    streak: int = 0
    answers: int = 0
    case: float | None = None
    tried: float | None = None
    unclean: int = 0


def result_of(report: Report) -> Result:
    """A report as a run's end."""
    return {
        Exit.CLEAN: Result.CLEAN,
        Exit.FAULT: Result.FAULT,
        Exit.COULD_NOT_RUN: Result.COULD_NOT_RUN,
    }[report.exit]


def held(schedule: Schedule, history: History, engine: str) -> bool:
    """Whether a canary must still wait: these very processes were not found clean."""
    return schedule.canary and (not engine or history.cleared != engine)


def due(schedule: Schedule, history: History, now: float, present: Present) -> Due | None:
    """The probe that should run now, if it may: whatever is due waits for the load to fall."""
    occasion = wanted(schedule, history, now, present)
    if occasion is None or present.load > schedule.at_load:
        return None
    full = occasion in (Occasion.QUARANTINE, Occasion.CANARY)
    return Due(occasion, quick=schedule.quick and not full)


def wanted(schedule: Schedule, history: History, now: float, present: Present) -> Occasion | None:
    """Why a probe is due, whether or not the load lets it run.

    A run that came to no verdict is tried again after ``retry``, on the same occasion.
    """
    if not present.engine:
        return None
    waited = history.at is None or now - history.at >= _pause(schedule, history, present)
    other = present.engine != history.engine
    anew = other and history.last not in (Result.COULD_NOT_RUN, Result.BROKEN_OFF)
    if held(schedule, history, present.engine):
        return Occasion.CANARY if waited or anew else None
    if present.state is not State.SERVING:
        if Occasion.QUARANTINE not in schedule.when:
            return None
        begun = history.tried != present.since
        return Occasion.QUARANTINE if waited or anew or begun else None
    if other and (waited or anew):
        occasion = Occasion.CHANGE if history.engine else Occasion.START
        if occasion in schedule.when:
            return occasion
    return Occasion.SERVING if waited and Occasion.SERVING in schedule.when else None


def _pause(schedule: Schedule, history: History, present: Present) -> float:
    if history.last in (Result.COULD_NOT_RUN, Result.BROKEN_OFF):
        return schedule.retry
    if present.state is State.SERVING and not held(schedule, history, present.engine):
        return schedule.every
    doubled: float = schedule.retry * 2 ** min(max(0, history.unclean - 1), MOST_DOUBLINGS)
    return max(schedule.retry, min(schedule.every, doubled))


def after(history: History, ran: Ran, occasion: Occasion, now: float, present: Present) -> History:
    """What is remembered once a run is over. ``present``: the backend as the run ended."""
    noted = replace(history, at=now, last=ran.result, occasion=occasion, tried=present.since)
    if ran.result is Result.BROKEN_OFF:
        return noted
    noted = replace(noted, case=present.since)
    if ran.result is Result.COULD_NOT_RUN or ran.engine != present.engine:
        return replace(noted, streak=0, answers=0)
    if ran.result is Result.FAULT:
        unclean = history.unclean + 1 if history.engine == ran.engine else 1
        cleared = "" if history.cleared == ran.engine else history.cleared
        return replace(
            noted, engine=ran.engine, cleared=cleared, streak=0, answers=0, unclean=unclean
        )
    goes_on = history.engine == ran.engine and history.case == present.since
    streak, answers = (history.streak, history.answers) if goes_on else (0, 0)
    noted = replace(noted, engine=ran.engine, unclean=0, streak=streak, answers=answers)
    if ran.quick:
        return noted
    return replace(noted, cleared=ran.engine, streak=streak + 1, answers=answers + ran.answers)


def vouched(history: History, engine: str) -> History:
    """An operator's word for these processes: a canary among them serves."""
    return replace(history, cleared=engine, streak=0, answers=0)


def excluded(rule: Release, history: History) -> float | None:
    """The leak rate that the clean probes in a row exclude, with 95%."""
    return leak_bound(history.answers, rule.detection)


def may_release(schedule: Schedule, history: History, present: Present) -> bool:
    """Whether clean probes end what is held against the backend now."""
    rule = schedule.release
    if rule is None or present.state is State.SERVING or history.streak < rule.after:
        return False
    if history.engine != present.engine or history.case != present.since:
        return False
    bound = excluded(rule, history)
    return bound is not None and bound <= rule.bound
