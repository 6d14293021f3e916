"""One backend as the request path sees it: its limit now, its counter, its checks' memory."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from msgspec.structs import replace

from gateway.core.admission import Outcomes
from gateway.core.capacity import (
    Capacity,
    Known,
    Rules,
    Snapshot,
    capacity,
    digest,
    good_until,
    incarnations,
    models,
)
from gateway.core.choice import seed
from gateway.core.gate import Report
from gateway.core.latency import PrefillModel
from gateway.core.neighbours import Neighbours
from gateway.core.prefixes import PrefixMemory
from gateway.core.probe_schedule import Schedule, held, vouched
from gateway.core.quarantine import Standing, awaiting
from gateway.edge.calibration import Calibrator
from gateway.edge.clock import wall_clock
from gateway.edge.counting import Measurer
from gateway.edge.discovery import Discovery
from gateway.edge.ejection import Ejections
from gateway.edge.queueing import Queue
from gateway.edge.standing import Past, Standings
from gateway.engines.base import Traits
from gateway.types import Prompt

STATED = Rules(allow_truncating_engine=True)  # the workers' word, without the operator's
MODELS_REMEMBERED = 1000  # names come from requests, so there must be an end


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the operator set for a backend, as the request path needs it."""

    name: str
    url: str
    models: tuple[str, ...]
    api_key: str | None
    rules: Rules
    outcomes: Outcomes
    drain_on_disconnect: bool
    salt: Callable[[str], str] | None  # tenant id -> cache salt
    salt_is_ours: bool = False  # no other gateway, and no earlier process, has the same
    prefill_ceiling: float | None = None  # tokens a second, the operator's word
    counted_with: Hashable = None  # alike for backends whose tokens are counted alike
    probes: Schedule | None = None  # when it is probed, if ever
    tls: ssl.SSLContext | None = None  # for an https URL; None: the system's trust

    @property
    def plain(self) -> bool:
        """Whether its standing and health alone say if it may be used."""
        return self.probes is None and not self.outcomes.allow_unknown_limit


@dataclass(frozen=True, slots=True)
class _WorkedOut:
    """Limits by model under one snapshot, and until when they hold."""

    snapshot: Snapshot
    good_until: float
    by_model: dict[str, Capacity]
    stated: dict[str, Capacity]


class Backend:
    """An engine, or a router with engines behind it."""

    def __init__(
        self,
        wiring: Wiring,
        discovery: Discovery,
        measurer: Measurer,
        clock: Callable[[], float],
        *,
        counting: Callable[[], Mapping[str, object]] | None = None,
        calibrator: Calibrator | None = None,
        queue: Queue | None = None,
        standings: Standings | None = None,
        ejections: Ejections | None = None,
        prefix_steps: int = 200_000,
    ) -> None:
        self.wiring = wiring
        self.name = wiring.name
        self.plain = wiring.plain
        self.discovery = discovery
        self.measurer = measurer
        self.counting = counting or _by_engine  # how it counts, for operators
        self.calibrator = calibrator  # None where no local tokenizer counts
        self._standings = standings or Standings(wall_clock)
        self.past: Past = self._standings.past(wiring.name, wiring.url)
        self.ejections = ejections or Ejections(self._standings, clock)
        self.seed = seed(wiring.name)
        self.prefill = PrefillModel(given=wiring.prefill_ceiling)
        self.prefixes = PrefixMemory(prefix_steps)
        self.queue = queue  # None where it takes what comes
        self.waiting = 0  # requests that are in the queue without room yet
        self.neighbours = Neighbours()
        self.clock = clock  # seconds, as in all that is recorded of its requests
        self.load_elsewhere = 0  # at processes that serve together with this one
        self.gate: Callable[[], Report] | None = None  # the gate's findings, for operators
        self.probing: Callable[[], Mapping[str, object]] | None = None  # its probes, likewise
        self._worked_out = _WorkedOut(discovery.snapshot, 0.0, {}, {})
        self._processes = incarnations(discovery.snapshot)
        self._digest = (discovery.snapshot, digest(discovery.snapshot))

    def capacity(self, model: str | None = None) -> Capacity:
        """The longest prompt it may be sent now."""
        return self._held_back(
            capacity(self.discovery.snapshot, self.wiring.rules, self.clock(), model)
        )

    def capacity_for(self, model: str) -> Capacity:
        """The same for the request path: worked out once a snapshot, not once a request.

        ``Known.age`` is that of the moment it was worked out.
        """
        return self._held_back(self._limit(self._work_out().by_model, self.wiring.rules, model))

    def stated(self, model: str) -> int | None:
        """The longest prompt its workers say they accept, before anything of ours is taken off."""
        known = self._limit(self._work_out().stated, STATED, model)
        return known.tokens if isinstance(known, Known) else None

    def _work_out(self) -> _WorkedOut:
        """What was worked out of the snapshot there is, for as long as it holds."""
        snapshot, now = self.discovery.snapshot, self.clock()
        worked = self._worked_out
        if worked.snapshot is not snapshot or now > worked.good_until:
            self._notice(snapshot)
            until = min(good_until(snapshot, rules) for rules in (self.wiring.rules, STATED))
            worked = self._worked_out = _WorkedOut(snapshot, max(now, until), {}, {})
        return worked

    def _limit(self, known: dict[str, Capacity], rules: Rules, model: str) -> Capacity:
        limit = known.get(model)
        if limit is None:
            if len(known) >= MODELS_REMEMBERED:
                known.clear()
            limit = known[model] = capacity(self.discovery.snapshot, rules, self.clock(), model)
        return limit

    def refused(self, status: int, body: bytes) -> None:
        """The engine failed a prompt that was admitted: if for its length, learn its limit.

        ``body`` is an answer or an event of a stream. Only error objects in it are read.
        """
        engine = self.discovery.engine
        stated = engine.stated_limit(status, body) if engine is not None else None
        if stated is None:
            return
        if stated.max_prompt_tokens is not None:
            self.discovery.learned_limit(stated.max_prompt_tokens)
        else:
            self.discovery.ask_soon()

    def _notice(self, snapshot: Snapshot) -> None:
        """What was learnt of processes that are no more says nothing of those there are."""
        processes = incarnations(snapshot)
        if processes != self._processes:
            if self._processes:
                self.prefill = PrefillModel(given=self.wiring.prefill_ceiling)
                self.past.forget_process()
            self._processes = processes

    @property
    def standing(self) -> Standing:
        """Where it stands now, and why. A canary that waits for its probe is out too."""
        standing = self._standings.of(self)
        return awaiting(standing) if self.held else standing

    @property
    def held(self) -> bool:
        """Whether it is a canary whose present processes no probe has found clean."""
        probes = self.wiring.probes
        return probes is not None and held(probes, self.past.probed, self.digest)

    @property
    def digest(self) -> str:
        """Which processes with which capacity it is now (``capacity.digest``)."""
        snapshot = self.discovery.snapshot
        if self._digest[0] is not snapshot:
            self._digest = snapshot, digest(snapshot)
        return self._digest[1]

    def vouch(self) -> None:
        """An operator's word for its present processes: a canary need not wait for a probe."""
        self.past.probed = vouched(self.past.probed, self.digest)

    @property
    def floor(self) -> int:
        """The longest prompt it is sent while it is suspect."""
        return self._standings.rules.floor

    def _held_back(self, limit: Capacity) -> Capacity:
        """The limit less what a calibration that differs keeps free."""
        if self.calibrator is None or not isinstance(limit, Known):
            return limit
        margin = self.calibrator.margin(limit.tokens)
        return replace(limit, tokens=limit.tokens - margin) if margin else limit

    @property
    def counted_as(self) -> Hashable:
        """Alike for backends that give one count for one prompt, as far as that is known."""
        engine, calibrator = self.discovery.engine, self.calibrator
        return (
            self.wiring.counted_with,
            engine.name if engine is not None else None,
            (calibrator.consequence, calibrator.found.offset) if calibrator is not None else None,
        )

    @property
    def engine(self) -> str:
        """Which engine it is; ``unknown`` before it told."""
        engine = self.discovery.engine
        return engine.name if engine is not None else "unknown"

    @property
    def in_flight(self) -> int:
        """Requests it has."""
        return len(self.neighbours)

    @property
    def load(self) -> int:
        """Requests it has and those that wait for it."""
        return self.in_flight + self.waiting

    def doubt(self, prompt: Prompt) -> str | None:
        """Why its count is not claimed to be exact now, as a fixed word; None where it is."""
        return self.calibrator.doubt(prompt) if self.calibrator is not None else None

    def serves(self, model: str) -> bool:
        """Whether configuration sends this model here."""
        return any(fnmatchcase(model, pattern) for pattern in self.wiring.models)

    @property
    def traits(self) -> Traits:
        """The engine's peculiarities; none before it is known."""
        engine = self.discovery.engine
        return engine.traits if engine is not None else Traits()

    def models(self) -> tuple[str, ...]:
        """Model names its workers told."""
        return models(self.discovery.snapshot)


def _by_engine() -> Mapping[str, object]:
    return {"tokenizer": "engine"}
