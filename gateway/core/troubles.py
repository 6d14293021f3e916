"""What is wrong, in words and numbers, for the first line of the page at the admin root.

Reads what ``/overview`` tells, of one process or of all together, and nothing else, so that page
and numbers cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from gateway.core import calibration, outlier
from gateway.core.quarantine import CANARY, State

Told = Mapping[str, Any]


class Level(IntEnum):
    """How bad: nothing, to be looked at, requests are refused or in danger."""

    OK = 0
    WARNING = 1
    DANGER = 2


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong. ``backend`` is empty where it is the gateway's own."""

    level: Level
    backend: str
    text: str


def verdict(overview: Told) -> dict[str, Any]:
    """The first line, its level, and every trouble, the worst first."""
    found = sorted(troubles(overview), key=lambda one: -one.level)
    backends = overview.get("backends", ())
    level = max((one.level for one in found), default=Level.OK)
    return {
        "level": level.name.lower(),
        "headline": _headline(backends, sum(map(_serves, backends)), found),
        "troubles": [asdict(one) | {"level": one.level.name.lower()} for one in found],
    }


def troubles(overview: Told) -> Iterator[Trouble]:
    """Everything that is wrong, the gateway's own first."""
    if not overview.get("backends"):
        yield Trouble(Level.DANGER, "", "nothing is known of any backend")
    if overview.get("draining"):
        yield Trouble(Level.WARNING, "", "draining: it takes no new connections and will end")
    yield from _store(overview.get("limits", {}))
    yield from _processes(overview.get("processes", ()))
    for backend in overview.get("backends", ()):
        for level, text in (
            *_standing(backend),
            *_ejection(backend),
            *_limit(backend),
            *_workers(backend),
        ):
            yield Trouble(level, backend["name"], text)


def _headline(backends: Iterable[Told], serving: int, found: list[Trouble]) -> str:
    names = [backend["name"] for backend in backends]
    if not names:
        return "No worker process answers"
    if len(names) == 1:
        line = f"{names[0]} is {'' if serving else 'not '}serving"
    elif serving == len(names):
        line = f"All {len(names)} backends serving"
    else:
        line = f"{serving} of {len(names)} backends serving"
    if found and serving == len(names):
        line += f", {len(found)} thing{_s(len(found))} to look at"
    return line


def _serves(backend: Told) -> bool:
    known = backend["limit"]["state"] == "known" or _passes_unchecked(backend)
    ejected = backend["ejection"]["state"] == outlier.State.EJECTED
    return known and not ejected and backend["standing"]["state"] != State.QUARANTINED


def _passes_unchecked(backend: Told) -> bool:
    return bool(backend["limit"]["state"] == "unknown" and backend["unknown_limit_allowed"])


def _store(limits: Told) -> Iterator[Trouble]:
    if limits.get("up", True):
        return
    refuses = limits["when_store_fails"] != "allow"
    consequence = "requests are refused" if refuses else "requests pass without quotas"
    text = f"the store of quotas ({limits['store']}) does not answer: {consequence}"
    yield Trouble(Level.DANGER if refuses else Level.WARNING, "", text)


def _processes(processes: Iterable[Told]) -> Iterator[Trouble]:
    states = [process["state"] for process in processes]
    if missing := len(states) - states.count("up"):
        text = f"{missing} of {len(states)} worker processes {_are(missing)} not up"
        yield Trouble(Level.WARNING, "", text)


def _standing(backend: Told) -> Iterator[tuple[Level, str]]:
    standing = backend["standing"]
    state, number = standing["state"], len(standing["incidents"])
    evidence = f"{standing['reason']}, {number} incident{_s(number)}"
    since = f"for {_for(standing['for_s'] or 0)}"
    if state == State.QUARANTINED and standing["reason"] == CANARY:
        yield Level.WARNING, "a canary: nothing is sent to it until a probe of it is clean"
    elif state == State.QUARANTINED:
        yield Level.DANGER, f"quarantined {since} ({evidence}): nothing is sent to it"
    elif state == State.SUSPECT:
        floor = f"{backend['suspect_floor']:,}"
        text = f"suspect {since} ({evidence}): it is sent no prompt over {floor} tokens"
        if standing["held_by_max_share"]:
            text += "; quarantined but for the cap, quarantine.max_share"
        yield Level.WARNING, text


def _ejection(backend: Told) -> Iterator[tuple[Level, str]]:
    ejection = backend["ejection"]
    reason, times = ejection["reason"], ejection["ejections"]
    if ejection["state"] == outlier.State.EJECTED:
        text = f"ejected after failures in a row ({reason}; ejection {times}), for another"
        yield Level.WARNING, f"{text} {_for(ejection['for_s'])}: nothing is sent to it"
    elif ejection["state"] == outlier.State.HALF_OPEN:
        yield Level.WARNING, f"half open after failures in a row ({reason}): one request tries it"


def _limit(backend: Told) -> Iterator[tuple[Level, str]]:
    limit = backend["limit"]
    if limit["state"] != "known":
        passes = "pass unchecked" if _passes_unchecked(backend) else "are refused with 503"
        yield Level.DANGER, f"its limit is {limit['state']}, prompts {passes}: {limit['reason']}"
    for contradiction in backend["contradictions"]:
        yield Level.WARNING, f"worker {contradiction}"
    found = backend["calibration"]
    if found and found["state"] == calibration.State.DIFFERS:
        number = len(found["differences"])
        yield (
            Level.WARNING,
            f"our token counts differ from the engine's on {number} sample{_s(number)}",
        )


def _workers(backend: Told) -> Iterator[tuple[Level, str]]:
    for worker in backend["workers"]:
        if worker["trouble"]:
            yield Level.WARNING, f"worker {worker['worker']} does not answer: {worker['trouble']}"
    alike: dict[tuple[str, int, int], list[str]] = {}  # ranks and replicas, told once
    for fact in (fact for worker in backend["workers"] for fact in worker["facts"]):
        pool, context = fact["pool_tokens"], fact["context_tokens"]
        if pool is not None and context is not None and pool < context:
            alike.setdefault((fact["role"], pool, context), []).append(fact["worker"])
    for short, workers in alike.items():
        yield _short_pool(*short, workers, backend["limit"].get("max_prompt_tokens"))


def _short_pool(
    role: str, pool: int, context: int, workers: list[str], limit: int | None
) -> tuple[Level, str]:
    """The incident's first fault; harmless behind this gateway with the limit under the pool."""
    whose = f"{role} worker {workers[0]}"
    if len(workers) > 1:
        whose = f"each of {len(workers)} {role} workers ({workers[0]}, ...)"
    text = (
        f"the KV pool of {whose} holds {pool:,} tokens, "
        f"{context - pool:,} fewer than the context of {context:,} it advertises"
    )
    if limit is None:
        return Level.DANGER, text
    if limit > pool:
        return Level.DANGER, f"{text}, and prompts up to {limit:,} are sent to it"
    return Level.WARNING, f"{text}; prompts over {limit:,} are refused with 400"


def _for(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _s(number: int) -> str:
    return "" if number == 1 else "s"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
