"""Incidents: what a check found, in numbers and identities. Kept in memory, logged, sent on.

Where gateways share a store, each keeps the others' as well (``gateway.edge.replicas``).

An incident holds no text of prompts or answers, and of tenants a keyed hash: whoever may read an
incident need not know customers. The request id leads to the tenant in the operator's own log.
"""

from __future__ import annotations

import hmac
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from gateway.edge.metrics import Metrics
from gateway.limits import gcra

log = logging.getLogger("poolgate.incident")
KEPT = 1000
PER_TENANT = gcra.Quota(amount=30, period=60.0, burst=30)

Incident = Mapping[str, Any]


class Sink(Protocol):
    """Where incidents go besides the log."""

    def put(self, incident: Incident) -> None:
        """Take an incident. Must not wait."""


class Incidents:
    """The latest incidents, in the order they became known here; ``replica`` opened those opened
    here.

    ``sink``, ``key`` and ``changed``, which is called at each that is opened, may be replaced at
    any time. ``untold`` are those that no other gateway has been told.
    """

    def __init__(
        self, metrics: Metrics, key: bytes, clock: Callable[[], float], replica: str = ""
    ) -> None:
        self.sink: Sink | None = None
        self.changed: Callable[[], None] = nobody_else
        self.key = key
        self.replica = replica
        self.untold: deque[Incident] = deque(maxlen=KEPT)
        self._metrics = metrics
        self._clock = clock
        self._kept: dict[str, Incident] = {}
        self._opened: dict[str, gcra.Tat | None] = {}  # by tenant, so by configuration

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Incident]:
        return iter(tuple(self._kept.values()))

    @property
    def own(self) -> int:
        """How many of them were opened here."""
        return sum(incident["replica"] == self.replica for incident in self._kept.values())

    def pseudonym(self, tenant: str) -> str:
        """A tenant's keyed hash, alike wherever the key is."""
        return hmac.new(self.key, b"tenant: " + tenant.encode(), "sha256").hexdigest()[:16]

    def admits(self, tenant: str, kind: str) -> bool:
        """Whether an incident in this tenant's answers is one too many to be recorded.

        A tenant that could open incidents at will could bury others, or frame a backend.
        """
        opened, now = self._opened.get(tenant), self._clock()
        if not gcra.decide(gcra.ahead(opened, now), 1, PER_TENANT).allowed:
            self._metrics.incidents_suppressed.labels(kind).inc()
            return False
        self._opened[tenant] = gcra.settle(opened, now, 1, PER_TENANT)
        return True

    def open(self, incident: Incident) -> None:
        """Keep it, log it, send it on."""
        incident = {**incident, "replica": self.replica}
        self._keep(incident)
        self._metrics.incidents.labels(incident["kind"]).inc()
        written = msgspec.json.encode(incident).decode()
        log.warning("%s", written, extra={"incident": msgspec.Raw(written.encode())})
        if self.sink is not None:
            self.sink.put(incident)
        self.untold.append(incident)
        self.changed()

    def hear(self, incident: Incident) -> None:
        """Keep another gateway's: it has counted and logged it, and sent it on."""
        self._keep(incident)

    def _keep(self, incident: Incident) -> None:
        self._kept.setdefault(incident["id"], incident)
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def matching(self, wanted: Mapping[str, str], limit: int | None = None) -> list[Incident]:
        """Newest first; ``wanted`` are members and their values, ``tenant`` by name or hash."""
        wanted = dict(wanted)
        since = wanted.pop("since", "")
        if "tenant" in wanted:
            hashes = {wanted["tenant"], self.pseudonym(wanted.pop("tenant"))}
        else:
            hashes = None
        found = [
            incident
            for incident in sorted(self, key=lambda one: str(one["time"]), reverse=True)
            if incident["time"] >= since
            and all(incident[name] == value for name, value in wanted.items())
            and (hashes is None or hashes & {incident["tenant"], incident["source"]})
        ]
        return found[:limit]


def nobody_else() -> None:
    """No other gateway is told."""
