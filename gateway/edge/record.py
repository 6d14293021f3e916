"""One record an exchange, once, whatever happened: metrics and a log line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from multidict import CIMultiDictProxy

from gateway.edge.exchange import Exchange
from gateway.edge.gen_ai import length_class
from gateway.edge.incidents import Incidents
from gateway.edge.live import Live
from gateway.edge.metrics import Metrics
from gateway.edge.shown import shown
from gateway.edge.trace import Trace
from gateway.errors import Kind
from gateway.types import AtLeast, Bounded, CheckResult, Counted, Ending, PromptLength, Unverifiable

BY_QUOTA = frozenset({Kind.RATE_LIMITED, Kind.EXCEEDS_ALLOWANCE})


class Lines(Protocol):
    """Where access records go: one JSON object a line (``gateway.edge.access_log``)."""

    def write(self, line: bytes) -> None:
        """Take a line without its end; must not wait."""


class Tracing(Protocol):
    """Exchanges as traces (``gateway.edge.otel``)."""

    def begin(self, headers: CIMultiDictProxy[str], /) -> Trace:
        """The place of an exchange that begins, of whose request these are the headers."""

    def write(self, exchange: Exchange, /) -> None:
        """Take an exchange that is over; must not wait."""

    async def close(self) -> None:
        """Tell what waits to be told, within seconds."""


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
        self.tracing: Tracing | None = None  # that of the configuration in force
        self.live = Live(clock)

    def write(self, exchange: Exchange) -> None:
        """The exchange is over."""
        if exchange.ended is None:
            exchange.ended = self._clock()
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
            metrics.routing.connect_retries.labels(exchange.unreachable).inc()
        # Before a second engine was asked there was the first one's time, which is not overhead.
        first = exchange.withheld is None and exchange.unreachable is None
        if exchange.forwarded_at is not None and first:
            taken = exchange.forwarded_at - exchange.started - (exchange.queued or 0.0)
            metrics.overhead_seconds.observe(taken)
        if exchange.queued is not None:
            metrics.queue_wait.labels(exchange.backend).observe(exchange.queued)
        if exchange.ttft is not None and exchange.stream:
            metrics.gen_ai.ttft.labels(*_gen_ai(exchange), _length_class(exchange)).observe(
                exchange.ttft
            )
        if exchange.forwarded_at is not None:
            error = "" if exchange.outcome == Ending.COMPLETE else exchange.outcome
            metrics.gen_ai.operation_duration.labels(*_gen_ai(exchange), error).observe(
                exchange.ended - exchange.forwarded_at
            )
        self._usage(exchange)
        if exchange.withheld is not None:
            metrics.retries.labels(exchange.withheld.backend).inc()
            self._checks(exchange.withheld.backend, exchange.withheld.checks)
        self._checks(exchange.backend, exchange.checks)
        if self._access is not None:
            self._access.write(msgspec.json.encode(access_record(exchange, exchange.ended)))
        if self.tracing is not None:
            self.tracing.write(exchange)

    def _checks(self, backend: str, checks: Iterable[CheckResult]) -> None:
        for check in checks:
            self._metrics.checks.labels(check.check, check.verdict).inc()
            if check.suspect:
                self._metrics.suspects.labels(check.check, backend).inc()

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
        labels = _gen_ai(exchange)
        for kind, tokens in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
            if tokens is not None:
                self._metrics.gen_ai.token_usage.labels(*labels, kind).observe(tokens)
        if usage.cached_tokens:
            self._metrics.cached_tokens.labels(exchange.backend).inc(usage.cached_tokens)


def access_record(exchange: Exchange, ended: float) -> dict[str, Any]:
    """One line of the access log (docs/logs.md). ``ended`` is seconds of the loop's clock."""
    asked, refusal = exchange.asked, exchange.refusal
    usage = exchange.observation.usage if exchange.observation else None
    return {
        "time": datetime.now(UTC).isoformat(),
        "request_id": exchange.request_id,
        "trace_id": exchange.trace.hex if exchange.trace else None,
        "tenant": exchange.tenant,
        "dialect": exchange.dialect,
        "model": shown(asked.model) if asked else None,
        "backend": exchange.backend,
        "engine": exchange.engine,
        "stream": exchange.stream,
        "status": exchange.status,
        "outcome": exchange.outcome,
        "prompt_tokens": exchange.prompt_tokens,
        "prompt_tokens_bound": _bound(exchange.length),
        "not_exact": _not_exact(exchange),
        "reported_prompt_tokens": usage.prompt_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "limit": exchange.limit,
        "limited_by": exchange.limited_by,
        "length_limited_by": refusal.too_long.limited_by if refusal and refusal.too_long else None,
        "read_s": _seconds(exchange, "read"),
        "count_s": _seconds(exchange, "count"),
        "queued_s": exchange.queued,
        "ttft_s": exchange.ttft,
        "duration_s": round(ended - exchange.started, 6),
        "bytes_in": asked.size if asked else None,
        "bytes_out": exchange.bytes_out,
        "checks": {check.check: str(check.verdict) for check in exchange.checks},
        "incidents": exchange.incidents,
        "withheld_at": exchange.withheld.backend if exchange.withheld else None,
        "unreachable_at": exchange.unreachable,
    }


def _gen_ai(exchange: Exchange) -> tuple[str, str, str]:
    """The labels that the gen_ai metrics share: backend, operation, provider."""
    operation = exchange.asked.operation if exchange.asked else "unknown"
    return exchange.backend, operation, exchange.engine


def _length_class(exchange: Exchange) -> str:
    length = exchange.length
    return length_class(length.total if isinstance(length, Counted | Bounded) else None)


def _bound(length: PromptLength | None) -> str | None:
    """What is known of a length that was not counted to its end, as the answer's header says it."""
    match length:
        case Bounded(_, total):
            return f"<={total}"
        case AtLeast(longest):
            return f">={longest}"
    return None


def _not_exact(exchange: Exchange) -> str | None:
    """Why there is no exact count, as a fixed word."""
    length = exchange.length
    return length.reason if isinstance(length, Unverifiable) else exchange.doubt


def _seconds(exchange: Exchange, name: str) -> float | None:
    """How long stages of a name took in all; None where there was none."""
    took = [stage.ended - stage.began for stage in exchange.stages if stage.name == name]
    return round(sum(took), 6) if took else None
