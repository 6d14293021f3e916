"""What looks at a backend again and again while it serves: the gate's checks, and its probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.edge.actions import Actions
from gateway.edge.backends import Backend
from gateway.edge.configured import model_to_ask, probe_schedule
from gateway.edge.counting import LocalCounters
from gateway.edge.gate_watch import GateOrders, GateWatch
from gateway.edge.metrics import Metrics
from gateway.edge.probe_task import ProbeOrders, ProbeTask
from gateway.edge.probing import Prober
from gateway.edge.standing import Standings
from gateway.settings import models as written
from gateway.settings.probing import Gate, Probe
from gateway.types import Action


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


def probe_orders(entry: written.Backend, probe: Probe) -> ProbeOrders:
    """How a backend is probed."""
    return ProbeOrders(
        probe_schedule(probe),
        probe.model or model_to_ask(entry),
        named=probe.model is not None,
        rounds=probe.rounds,
        idle=probe.idle,
        action=Action(probe.action),
        cancels=entry.on_disconnect == "cancel",
    )


def gate_orders(entry: Gate) -> GateOrders:
    """What a running backend is held against."""
    action = None if entry.action == "show" else Action(entry.action)
    return GateOrders(entry.context, entry.headroom, action)
