"""What looks at a backend again and again while it serves: the gate's checks, and its probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.edge.actions import Actions
from gateway.edge.backends import Backend
from gateway.edge.configured import gate_orders, probe_orders
from gateway.edge.counting import LocalCounters
from gateway.edge.gate_watch import GateWatch
from gateway.edge.metrics import Metrics
from gateway.edge.probe_task import ProbeTask
from gateway.edge.probing import Prober
from gateway.edge.standing import Standings
from gateway.settings import models as written


class Watch(Protocol):
    """One of a backend's."""

    async def run(self) -> None:
        """For ever."""


@dataclass(frozen=True, slots=True)
class Watching:
    """Makes watches. ``deadline``: seconds for a short question. ``probes``: this process is the
    one that probes and opens incidents, of those that serve together.
    """

    standings: Standings
    actions: Actions
    metrics: Metrics
    clock: Callable[[], float]
    deadline: float
    probes: bool

    def of(
        self,
        entry: written.Backend,
        backend: Backend,
        counters: LocalCounters | None,
        prober: Callable[[float], Prober],
    ) -> Iterator[Watch]:
        """A backend's watches. ``prober`` asks it, with a deadline in seconds."""
        gate = GateWatch(
            backend,
            gate_orders(entry.gate),
            prober(self.deadline),
            self.actions,
            self.clock,
            reports=self.probes,
        )
        backend.gate = lambda: gate.found
        yield gate
        if entry.probe is None or not self.probes:
            return
        task = ProbeTask(
            backend,
            probe_orders(entry, entry.probe),
            prober(entry.probe.timeout),
            counters,
            self.standings,
            self.actions,
            self.metrics,
            self.clock,
        )
        backend.probing = task.description
        yield task
