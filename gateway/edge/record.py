"""One record an exchange, once, whatever happened: metrics and a log line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from gateway.edge.exchange import Exchange, Withheld
from gateway.edge.incidents import Incidents
from gateway.edge.live import Live
from gateway.edge.metrics import Metrics
from gateway.errors import Kind

BY_QUOTA = frozenset({Kind.RATE_LIMITED, Kind.EXCEEDS_ALLOWANCE})


class Lines(Protocol):
    """Where access records go: one JSON object a line (``gateway.edge.access_log``)."""

    def write(self, line: bytes) -> None:
        """Take a line without its end; must not wait."""


class Recorder:
    """Writes what the exchange was to metrics and logs. Never text, never keys."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        access: Lines | None,
        incidents: Incidents,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._access = access
        self.incidents = incidents
        self.live = Live(clock)

    def write(self, exchange: Exchange) -> None:
        """The exchange is over."""
        metrics = self._metrics
        self.live.note(exchange)
        metrics.requests.labels(
            exchange.dialect, exchange.backend, exchange.tenant, exchange.outcome
        ).inc()
        if exchange.refusal is not None:
            metrics.rejections.labels(exchange.refusal.kind.code).inc()
            self._cost_of_refusal(exchange)
        self._quota(exchange)
        if exchange.unreachable is not None:
            metrics.connect_retries.labels(exchange.unreachable).inc()
        # Before a second engine was asked there was the first one's time, which is not overhead.
        first = exchange.withheld is None and exchange.unreachable is None
        if exchange.forwarded_at is not None and first:
            taken = exchange.forwarded_at - exchange.started - (exchange.queued or 0.0)
            metrics.overhead_seconds.observe(taken)
        if exchange.queued is not None:
            metrics.queue_wait.labels(exchange.backend).observe(exchange.queued)
        if exchange.ttft is not None and exchange.stream:
            metrics.ttft.labels(exchange.backend).observe(exchange.ttft)
        self._usage(exchange)
        if exchange.withheld is not None:
            metrics.retries.labels(exchange.withheld.backend).inc()
            self._checks(exchange.withheld)
        self._checks(Withheld(exchange.backend, tuple(exchange.checks)))
        if self._access is not None:
            self._access.write(msgspec.json.encode(self._line(exchange)))

    def _checks(self, answer: Withheld) -> None:
        for check in answer.checks:
            self._metrics.checks.labels(check.check, check.verdict).inc()
            if check.suspect:
                self._metrics.suspects.labels(check.check, answer.backend).inc()

    def _cost_of_refusal(self, exchange: Exchange) -> None:
        refusal = exchange.refusal
        if refusal is not None and (too_long := refusal.too_long) is not None:
            self._metrics.refused_for_length.labels(exchange.backend, too_long.limited_by).inc(
                too_long.tokens
            )

    def _quota(self, exchange: Exchange) -> None:
        if exchange.limited_by is None:
            return
        refused = exchange.refusal is not None and exchange.refusal.kind in BY_QUOTA
        self._metrics.quota_refusals.labels(
            exchange.tenant, exchange.limited_by, "refused" if refused else "shadow"
        ).inc()

    def _usage(self, exchange: Exchange) -> None:
        usage = exchange.observation.usage if exchange.observation else None
        if usage is None:
            return
        for kind, tokens in (
            ("input", usage.prompt_tokens),
            ("output", usage.completion_tokens),
            ("cached", usage.cached_tokens),
        ):
            if tokens:
                self._metrics.token_usage.labels(exchange.backend, kind).inc(tokens)

    def _line(self, exchange: Exchange) -> dict[str, Any]:
        usage = exchange.observation.usage if exchange.observation else None
        return {
            "time": datetime.now(UTC).isoformat(),
            "request_id": exchange.request_id,
            "tenant": exchange.tenant,
            "backend": exchange.backend,
            "dialect": exchange.dialect,
            "stream": exchange.stream,
            "status": exchange.status,
            "outcome": exchange.outcome,
            "prompt_tokens": exchange.prompt_tokens,
            "reported_prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "limit": exchange.limit,
            "limited_by": exchange.limited_by,
            "queued_s": exchange.queued,
            "ttft_s": exchange.ttft,
            "duration_s": round(self._clock() - exchange.started, 6),
            "checks": {check.check: str(check.verdict) for check in exchange.checks},
            "withheld_at": exchange.withheld.backend if exchange.withheld else None,
            "unreachable_at": exchange.unreachable,
        }
