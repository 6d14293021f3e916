"""What a finding does: it is recorded, the answer withheld, the backend's standing moved."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.core import capacity
from gateway.core.quarantine import Clue
from gateway.edge.backends import Backend
from gateway.edge.exchange import Exchange
from gateway.edge.incidents import Incidents
from gateway.edge.standing import Standings
from gateway.errors import Kind, Rejection
from gateway.types import Action, Finding

OWN = "probe"  # in a clue's place for a tenant, where the requests were ours
OF_A_REQUEST = (
    "request_id", "tenant", "source", "prompt_tokens", "limit", "ttft_s", "bytes_released",
)  # fmt: skip


class Actions:
    """Takes findings. One for all requests."""

    def __init__(self, incidents: Incidents, standings: Standings) -> None:
        self._incidents = incidents
        self._standings = standings

    def take(self, finding: Finding, exchange: Exchange, backend: Backend, *, able: bool) -> None:
        """Do what the finding asks for. ``able``: whether there is an answer left to withhold.

        Raises ``Rejection`` (WITHHELD) with the incident's id. A tenant that opens incidents
        faster than is believable still gets its answers withheld, but no more is recorded, and
        nothing is held against the backend.
        """
        incident = f"inc_{secrets.token_hex(8)}"
        withhold = able and finding.action is not Action.FLAG
        if self._incidents.admits(exchange.tenant, finding.result.check):
            if finding.action is Action.QUARANTINE:
                self._standings.report(backend, self._clue(finding, exchange, incident))
            exchange.incidents.append(incident)
            self._incidents.open(self._record(incident, finding, exchange, backend, withhold))
        if withhold:
            raise Rejection(
                Kind.WITHHELD,
                "The response was withheld by an integrity check. Retry.",
                incident=incident,
            )

    def report(self, finding: Finding, backend: Backend) -> None:
        """Do what a finding of our own asks for, in which no tenant's request has a part."""
        incident = f"inc_{secrets.token_hex(8)}"
        if finding.action is Action.QUARANTINE:
            self._standings.report(backend, self._clue(finding, None, incident))
        self._incidents.open(self._record(incident, finding, None, backend, withheld=False))

    def _clue(self, finding: Finding, exchange: Exchange | None, incident: str) -> Clue:
        return Clue(
            self._standings.now(),
            finding.result.check,
            self._incidents.pseudonym(exchange.tenant) if exchange is not None else OWN,
            finding.evidence,
            finding.forgeable,
            incident,
        )

    def _record(
        self,
        incident: str,
        finding: Finding,
        exchange: Exchange | None,
        backend: Backend,
        withheld: bool,
    ) -> dict[str, Any]:
        return {
            "id": incident,
            "time": datetime.now(UTC).isoformat(),
            "kind": finding.result.check,
            "evidence": str(finding.evidence),
            "action": str(finding.action),
            "withheld": withheld,
            "backend": backend.name,
            "standing": str(self._standings.of(backend).state),
            "engine": identity(backend),
            "finding": msgspec.to_builtins(finding.result),
            "numbers": dict(finding.numbers),
            **self._request(finding, exchange),
        }

    def _request(self, finding: Finding, exchange: Exchange | None) -> dict[str, Any]:
        """Whose answer it was; empty members where it was nobody's."""
        if exchange is None:
            return dict.fromkeys(OF_A_REQUEST)
        pseudonym = self._incidents.pseudonym
        values = (
            exchange.request_id,
            pseudonym(exchange.tenant),
            pseudonym(finding.source) if finding.source is not None else None,
            exchange.prompt_tokens,
            exchange.limit,
            exchange.ttft,
            exchange.bytes_out,
        )
        return dict(zip(OF_A_REQUEST, values, strict=True))


def identity(backend: Backend) -> dict[str, Any]:
    """Which engine it was: name, versions, the smallest pool and context, and their digest."""
    snapshot = backend.discovery.snapshot
    facts = [fact for seen in snapshot.workers.values() for fact in seen.facts]
    pools = [fact.pool_tokens for fact in facts if fact.pool_tokens is not None]
    contexts = [fact.context_tokens for fact in facts if fact.context_tokens is not None]
    engine = backend.discovery.engine
    return {
        "name": engine.name if engine is not None else None,
        "versions": sorted({fact.version for fact in facts if fact.version is not None}),
        "pool_tokens": min(pools, default=None),
        "context_tokens": min(contexts, default=None),
        "digest": capacity.digest(snapshot),
    }
