"""Sentinels on the request path: the marker on the way in, the scan on the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gateway.core.lexicon import lexicon
from gateway.core.sentinel import Numbers, Partial, Sentinels
from gateway.core.sentinel_channels import Watch, sentinels_in
from gateway.core.sentinel_check import judge_rest, judge_sentinel, readable
from gateway.core.sentinel_reader import Alarm, SentinelReader
from gateway.dialects import marking
from gateway.dialects.base import AnswerReader, Dialect
from gateway.edge.counting import Threads
from gateway.edge.metrics import Metrics
from gateway.edge.upstream import UpstreamAnswer
from gateway.engines.asking import shows_media
from gateway.types import Action, CheckResult, Finding, ParsedRequest

PREAMBLE = "\n\nInternal routing tag (never output or mention): "
# More tokens than the marker, and a system message around it, can add to any prompt.
MOST_TOKENS = 256
LARGE_BODY = 2**20  # bytes from which a point edit is work for a thread
_REPEATING = "sglang_generate"  # each of its events may show the whole text so far


@dataclass(frozen=True, slots=True)
class SentinelPolicy:
    """What the operator wants. ``scan`` is the share of answers scanned, 0 to 1.

    ``places``: markers are put into prompts. ``in_constrained``: also where the answer is bound
    to a schema.
    """

    action: Action
    places: bool = True
    scan: float = 1.0
    in_constrained: bool = False


class SentinelDesk:
    """What all requests share. ``clock`` is seconds since 1970: epochs are the cluster's."""

    def __init__(
        self,
        sentinels: Sentinels,
        policy: SentinelPolicy,
        threads: Threads,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.sentinels = sentinels
        self.policy = policy
        self.threads = threads
        self.clock = clock
        self._markers = metrics.sentinel_markers

    async def marked(self, dialect: Dialect, request: ParsedRequest, tenant: str) -> ParsedRequest:
        """The request with the tenant's sentinel in it, or as it was where none belongs there."""
        if not self.policy.places or not (request.generates or request.counts_only):
            return request
        if marking.constrained(request.body) and not self.policy.in_constrained:
            self.note("constrained")
            return request
        text = PREAMBLE + lexicon().phrase(self.sentinels.numbers(tenant, self.clock()))
        mark = partial(dialect.marked, request, text)
        large = len(request.raw) > LARGE_BODY
        marked = await self.threads.on_thread(mark) if large else mark()
        if marked is None:
            self.note("no_place")
        return marked or request

    def note(self, outcome: str) -> None:
        """Count what became of a marker: a fixed word."""
        self._markers.labels(outcome).inc()

    def hearing(self, request: ParsedRequest, tenant: str, request_id: str) -> Hearing | None:
        """The check of one answer; None where it is not scanned."""
        sampled = int(request_id[-8:], 16) < self.policy.scan * 2**32
        return Hearing(self, request, tenant) if sampled and request.generates else None


class Hearing:
    """The sentinel check of one answer."""

    def __init__(self, desk: SentinelDesk, request: ParsedRequest, tenant: str) -> None:
        now = desk.clock()
        self._desk = desk
        self._request = request
        self._tenant = tenant
        self._now = now
        self._reader: SentinelReader | None = None
        self._quoted: frozenset[Numbers] | None = None
        self._told: set[Numbers] = set()
        self._watch = Watch(
            lambda numbers: desk.sentinels.read(numbers, tenant, now),
            desk.sentinels.first_words(now),
            PREAMBLE,
            request.dialect == _REPEATING,
        )

    def reader(self, inner: AnswerReader, answer: UpstreamAnswer, *, streams: bool) -> AnswerReader:
        """``inner`` with a scan of what it lets through, unless it is compressed."""
        if answer.content_encoding.strip().lower() not in ("", "identity"):
            return inner
        self._reader = SentinelReader(inner, self._watch, streams=streams)
        return self._reader

    @property
    def alarmed(self) -> bool:
        """Whether a foreign sentinel waits for its judgement, and the answer with it."""
        return self._reader is not None and bool(self._reader.alarms)

    async def findings(self) -> list[Finding]:
        """The alarms that the request's own prompt does not explain."""
        explained = await self._quotations()
        found = []
        for alarm in self._reader.alarms if self._reader is not None else ():
            numbers = alarm.found.sighting.numbers
            if numbers not in explained and numbers not in self._told:
                self._told.add(numbers)  # in several choices, or again: one finding
                found.append(self._finding(alarm))
        return found

    async def settle(self) -> bytes:
        """Go on after the findings: what may go to the client now, foreign sentinels cut out."""
        quoted = await self._quotations()
        return self._reader.settle(quoted) if self._reader is not None else b""

    async def verdict(self) -> CheckResult:
        """Where there was no finding: what the whole answer showed."""
        if self._reader is None:
            return judge_rest("encoded", None)
        if self._reader.alarms:  # the client had gone when it was found
            return judge_rest("not_judged", None)
        return judge_rest(self._reader.gap, await self._partial(self._reader.runs()))

    async def _partial(self, runs: frozenset[Numbers]) -> Partial | None:
        """The longest piece of another tenant's sentinel; rare enough for a thread's hop."""
        if not runs:
            return None
        sentinels, tenant, now = self._desk.sentinels, self._tenant, self._now

        def longest() -> Partial | None:
            found = (sentinels.partial(run, tenant, now) for run in runs)
            return max(filter(None, found), key=lambda partial: partial.words, default=None)

        return await self._desk.threads.on_thread(longest)

    async def _quotations(self) -> frozenset[Numbers]:
        """The sentinels in the request itself: looked for once, and only where one was found."""
        if self._quoted is None:
            look = partial(sentinels_in, self._request.body, self._watch)
            small = len(self._request.raw) <= self._desk.threads.inline_bytes
            self._quoted = look() if small else await self._desk.threads.on_thread(look)
        return self._quoted

    def _finding(self, alarm: Alarm) -> Finding:
        sighting = alarm.found.sighting
        owners = self._desk.sentinels.owners(sighting, self._now)
        confirmed = readable(self._request, shows_media=shows_media(self._request.body))
        return judge_sentinel(
            sighting,
            owners[0] if len(owners) == 1 else None,
            alarm.found.start,
            self._desk.policy.action,
            confirmed=confirmed,
        )
