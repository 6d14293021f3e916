"""Holds a backend against the deploy gate's checks while it serves.

After each discovery round, and once more with both legs' counts where it is a prefill/decode
engine. A failure is told when it is new: another check, another worker, another process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core import gate
from gateway.core.gate import Level
from gateway.edge.actions import Actions
from gateway.edge.backends import Backend
from gateway.edge.books import read_books
from gateway.edge.probing import Prober
from gateway.types import Action, CheckResult, Evidence, Finding, Role, Verdict

log = logging.getLogger(__name__)
CHECK = "gate"
BOOKS_EVERY = 60.0  # seconds between questions for both legs' counts


@dataclass(frozen=True, slots=True)
class GateOrders:
    """What the pools are held against, and what a failure does; None: it is only shown."""

    context: int | None = None
    headroom: float = 1.25
    action: Action | None = None


class GateWatch:
    """One backend's. ``reports``: whether this process is the one that tells failures and opens
    incidents."""

    def __init__(
        self,
        backend: Backend,
        orders: GateOrders,
        prober: Prober,
        actions: Actions,
        clock: Callable[[], float],
        *,
        reports: bool,
    ) -> None:
        self._backend = backend
        self._orders = orders
        self._prober = prober
        self._actions = actions
        self._clock = clock
        self._reports = reports
        self._failing: frozenset[tuple[str, str, str]] = frozenset()
        self._first: gate.Legs | None = None  # counts when these processes were first seen
        self._asked = ("", 0.0)  # which processes, and when
        self._transfer: gate.Finding | None = None
        self.found = gate.Report((), None, orders.headroom)

    async def run(self) -> None:
        """Look after each round, for ever."""
        while True:
            await self._backend.discovery.next_round()
            await self.look()

    async def look(self) -> None:
        """One look at what is known now."""
        snapshot = self._backend.discovery.snapshot
        if not self._backend.digest:
            return
        await self._keep_books()
        self.found = gate.evaluate(
            snapshot,
            context=self._orders.context,
            headroom=self._orders.headroom,
            transfer=self._transfer,
        )
        self._tell()

    async def _keep_books(self) -> None:
        """What both legs counted, against what they had counted when they were first seen.

        What was in flight at that time was in decode's pools: decode alone may count it.
        """
        snapshot, engine = self._backend.discovery.snapshot, self._backend.digest
        if not gate.disaggregated(snapshot):
            self._transfer = None
            return
        now, (before, asked) = self._clock(), self._asked
        if engine == before and now - asked < BOOKS_EVERY:
            return
        self._asked = engine, now
        books = await read_books(snapshot, self._prober)
        if books is None:
            self._first, self._transfer = None, gate.transfer_finding(None)
            return
        first = self._first
        if first is None or engine != before or not gate.continues(first, books):
            self._first = first = books
        pools = sum(
            fact.pool_tokens or 0
            for seen in snapshot.workers.values()
            for fact in seen.facts
            if fact.role is Role.DECODE
        )
        self._transfer = gate.transfer_finding(books, first, pools)

    def _tell(self) -> None:
        failing = frozenset(
            (self._backend.digest, finding.check, finding.worker)
            for finding in self.found.findings
            if finding.level is Level.FAIL
        )
        new = failing - self._failing
        self._failing = failing
        if not new or not self._reports:
            return
        failures = [one for one in self.found.findings if one.level is Level.FAIL]
        for one in failures:
            log.warning(
                "backend %s: gate: %s %s: %s", self._backend.name, one.check, one.worker, one.text
            )
        if self._orders.action is not None:
            self._actions.report(self._finding(failures, self._orders.action), self._backend)

    @staticmethod
    def _finding(failures: list[gate.Finding], action: Action) -> Finding:
        checks = sorted({failure.check for failure in failures})
        result = CheckResult(
            CHECK, Verdict.MISMATCH, ",".join(checks), returned=len(failures), suspect=True
        )
        numbers = {f"{failure.check} {failure.worker}": failure.text for failure in failures}
        return Finding(result, Evidence.STRONG, action, numbers=numbers)
