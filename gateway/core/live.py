"""What passed lately, for the page at the admin root: counts a tenant, first-token times by length.

Bounded whatever comes: a minute of tenants that called in it, and for each backend the latest
``KEPT`` times in every octave of prompt length. Long prompts are rare and the ones that leaked, so
short ones never push them out, nor honest ones those that were found too fast. No text, no keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from heapq import nsmallest
from typing import Any

WINDOW = 60  # seconds
SHOWN = 100  # tenants
KEPT = 24  # first-token times an octave of prompt length, and as many of suspect ones


@dataclass(slots=True)
class Counts:
    """Exchanges that ended, by what they took and how. Tokens are the engine's words."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    answered_400: int = 0
    answered_429: int = 0
    answered_5xx: int = 0

    def add(self, status: int, input_tokens: int, output_tokens: int) -> None:
        """One more exchange."""
        self.requests += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        if status == 400:
            self.answered_400 += 1
        elif status == 429:
            self.answered_429 += 1
        elif status >= 500:
            self.answered_5xx += 1

    def take_out(self, other: Counts) -> None:
        """Without what ``other`` counted."""
        self.requests -= other.requests
        self.input_tokens -= other.input_tokens
        self.output_tokens -= other.output_tokens
        self.answered_400 -= other.answered_400
        self.answered_429 -= other.answered_429
        self.answered_5xx -= other.answered_5xx


COUNTED = tuple(field.name for field in fields(Counts))


def _row(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in COUNTED}


class Window:
    """Counts of each tenant over the last ``WINDOW`` seconds, by whole seconds of the clock.

    A second's counts are taken out of the sums when it leaves, so that reading costs no more than
    the tenants there are.
    """

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, dict[str, Counts]]] = deque()
        self._last: tuple[int, dict[str, Counts]] = (-1, {})
        self._sums: dict[str, Counts] = {}
        self._total = Counts()

    def add(
        self, now: float, tenant: str, status: int, input_tokens: int, output_tokens: int
    ) -> None:
        """An exchange of ``tenant`` ended at ``now`` with this status."""
        second = int(now)
        if self._last[0] != second:
            self._expire(second)
            self._last = (second, {})
            self._seconds.append(self._last)
        for counts in (self._last[1], self._sums):
            known = counts.get(tenant)
            if known is None:
                known = counts[tenant] = Counts()
            known.add(status, input_tokens, output_tokens)
        self._total.add(status, input_tokens, output_tokens)

    def sums(self, now: float) -> Mapping[str, Counts]:
        """What each tenant's exchanges of the last minute come to; those without any are not in."""
        self._expire(int(now))
        return self._sums

    def total(self, now: float) -> Counts:
        """The same of all tenants together."""
        self._expire(int(now))
        return self._total

    def _expire(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - WINDOW:
            for tenant, counts in self._seconds.popleft()[1].items():
                left = self._sums[tenant]
                left.take_out(counts)
                self._total.take_out(counts)
                if not left.requests:
                    del self._sums[tenant]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """``tokens`` were prefilled for an answer whose first byte came after ``ttft`` seconds.

    ``suspect``: under the floor, as the latency check judged it then. ``at``: when.
    """

    at: float
    tokens: int
    ttft: float
    suspect: bool = False


class FirstTokens:
    """The latest first-token times of each backend, by octave of length."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[tuple[int, bool], deque[FirstToken]]] = {}

    def add(self, backend: str, told: FirstToken) -> None:
        """One more answer of ``backend``."""
        places = self._kept.setdefault(backend, {})
        place = (told.tokens.bit_length(), told.suspect)
        kept = places.get(place)
        if kept is None:
            kept = places[place] = deque(maxlen=KEPT)
        kept.append(told)

    def of(self, backend: str) -> list[FirstToken]:
        """Those that are kept, by length and age."""
        places = self._kept.get(backend, {})
        return [told for _, kept in sorted(places.items()) for told in kept]

    def keep_only(self, backends: Iterable[str]) -> None:
        """Forget backends that are no longer configured."""
        for gone in self._kept.keys() - set(backends):
            del self._kept[gone]


def traffic(window: Window, in_flight: Mapping[str, int], now: float, uptime: float) -> Any:
    """The window for operators: who calls most first, ``SHOWN`` at most, and the total of all."""
    sums = window.sums(now)
    names = sums.keys() | in_flight.keys()
    none = Counts()
    # No more than are shown become rows: tenants may be many, and the event loop waits.
    shown = nsmallest(
        SHOWN,
        names,
        key=lambda name: (-sums.get(name, none).requests, -in_flight.get(name, 0), name),
    )
    tenants = [
        {"id": name, **_row(sums.get(name, none)), "in_flight": in_flight.get(name, 0)}
        for name in shown
    ]
    return {
        "seconds": round(min(float(WINDOW), uptime), 1),
        "tenants": tenants,
        "left_out": len(names) - len(tenants),
        "total": {**_row(window.total(now)), "in_flight": sum(in_flight.values())},
    }


def traffic_of_all(parts: Sequence[Mapping[str, Any]]) -> Any:
    """What several processes tell of their traffic, as if one did."""
    tenants: dict[str, dict[str, Any]] = {}
    for each in (tenant for part in parts for tenant in part["tenants"]):
        known = tenants.setdefault(each["id"], {"id": each["id"]})
        for name in (*COUNTED, "in_flight"):
            known[name] = known.get(name, 0) + each[name]
    told = sorted(
        tenants.values(), key=lambda one: (-one["requests"], -one["in_flight"], one["id"])
    )
    # Of those a process left out it is not known who they are: they may be the same everywhere.
    unknown = max((part["left_out"] for part in parts), default=0)
    return {
        "seconds": max((part["seconds"] for part in parts), default=float(WINDOW)),
        "tenants": told[:SHOWN],
        "left_out": len(told[SHOWN:]) + unknown,
        "total": {
            name: sum(part["total"][name] for part in parts) for name in (*COUNTED, "in_flight")
        },
    }


def first_tokens(told: Iterable[FirstToken], now: float) -> list[list[Any]]:
    """Rows ``[tokens, seconds, suspect, age in seconds]``."""
    return [
        [one.tokens, round(one.ttft, 5), one.suspect, round(max(0.0, now - one.at), 1)]
        for one in told
    ]


def first_tokens_of_all(parts: Iterable[Sequence[Sequence[Any]]]) -> list[list[Any]]:
    """Such rows of several processes, no more of them than one process keeps: the latest."""
    kept = FirstTokens()
    every = sorted((row for part in parts for row in part), key=lambda row: -float(row[3]))
    for tokens, ttft, suspect, age in every:
        kept.add("", FirstToken(-age, tokens, ttft, suspect))
    return first_tokens(kept.of(""), 0.0)


def counts_of_all(
    parts: Iterable[Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, float]]:
    """Checks by verdict, summed."""
    sums: dict[str, dict[str, float]] = {}
    for check, verdicts in (item for part in parts for item in part.items()):
        known = sums.setdefault(check, {})
        for verdict, count in verdicts.items():
            known[verdict] = known.get(verdict, 0) + count
    return sums
