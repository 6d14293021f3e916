"""What one exchange was, as a tree of spans: pure, and without any tracing library.

Names follow OpenTelemetry's semantic conventions for generative AI and HTTP as they were in
November 2026 (both in development); what they have no name for is ``poolgate.*``. Times are seconds
of the loop's clock. No attribute holds text, keys or headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from gateway.dialects import routes
from gateway.edge import models
from gateway.edge.exchange import Exchange
from gateway.edge.shown import shown
from gateway.edge.trace import Trace
from gateway.errors import Kind
from gateway.types import Ending

Value: TypeAlias = str | bool | int | float | Sequence[str]
METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
)
# Words engines end an answer with. What else one sends may be anything, so it is not told.
REASONS = frozenset(
    {
        *("stop", "length", "tool_calls", "function_call", "content_filter", "abort", "error"),
        *("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "pause_turn"),
        *("completed", "incomplete", "failed", "cancelled", "eos_token"),
    }
)
_BROKEN = frozenset(
    {
        str(Ending.TRUNCATED),
        str(Ending.UPSTREAM_ERROR),
        Kind.UPSTREAM_UNAVAILABLE.code,
        Kind.UPSTREAM_TIMEOUT.code,
    }
)
_UNWELL = frozenset({Ending.TRUNCATED, Ending.UPSTREAM_ERROR, Ending.CLIENT_GONE})


@dataclass(frozen=True, slots=True)
class Span:
    """One span. ``id`` is None where nobody has to know it beforehand."""

    name: str
    kind: Literal["SERVER", "CLIENT", "INTERNAL"]
    began: float
    ended: float
    parent: int | None
    id: int | None = None
    attributes: Mapping[str, Value] | None = None
    failed: bool = False


def spans(exchange: Exchange, trace: Trace, now: float) -> list[Span]:
    """The exchange's span and those within it: reading, counting, the queue, the engine's call,
    and of a streamed answer prefill and stream. ``now`` stands for an end that was not noted.
    """
    ended = exchange.ended if exchange.ended is not None else now
    error = _error(exchange)
    whole = Span(
        _name(exchange),
        "SERVER",
        exchange.started,
        ended,
        trace.parent_id,
        trace.span_id,
        dict(_attributes(exchange)),
        failed=exchange.status >= 500 or (exchange.status < 400 and error in _BROKEN),
    )
    stages = [
        Span(stage.name, "INTERNAL", stage.began, stage.ended, trace.span_id)
        for stage in exchange.stages
    ]
    return [whole, *stages, *_call(exchange, trace, ended)]


def _call(exchange: Exchange, trace: Trace, ended: float) -> Iterator[Span]:
    """The last call to an engine, if there was one."""
    sent = exchange.forwarded_at
    if sent is None or exchange.upstream is None:
        return
    error = _error(exchange)
    attributes: dict[str, Value] = {
        "http.request.method": exchange.method,
        "url.full": exchange.upstream + exchange.path,  # of a known route: nothing of a client's
        **_server(exchange.upstream),
    }
    broken = error is not None and error in _BROKEN
    if error is not None and broken:
        attributes["error.type"] = error
    yield Span(
        exchange.method,
        "CLIENT",
        sent,
        ended,
        trace.span_id,
        trace.engine_id,
        attributes,
        failed=broken,
    )
    if exchange.stream and exchange.ttft is not None:
        first = min(sent + exchange.ttft, ended)
        yield Span("prefill", "INTERNAL", sent, first, trace.engine_id)
        yield Span("stream", "INTERNAL", first, ended, trace.engine_id)


def _attributes(exchange: Exchange) -> Iterator[tuple[str, Value]]:
    route = _route(exchange)
    known = exchange.method in METHODS
    yield "http.request.method", exchange.method if known else "_OTHER"
    yield "url.scheme", "https" if exchange.secure else "http"
    if route is not None:
        yield "http.route", route
        yield "url.path", route
    if exchange.status:
        yield "http.response.status_code", exchange.status
    if (error := _error(exchange)) is not None:
        yield "error.type", error
    yield from _asked(exchange)
    yield from _answered(exchange)
    yield "poolgate.request_id", exchange.request_id
    yield "poolgate.tenant", exchange.tenant
    yield "poolgate.backend", exchange.backend
    yield "poolgate.outcome", exchange.outcome
    yield "poolgate.bytes_out", exchange.bytes_out
    for name, number in (
        ("poolgate.prompt_tokens", exchange.prompt_tokens),
        ("poolgate.limit", exchange.limit),
        ("poolgate.limited_by", exchange.limited_by),
    ):
        if number is not None:
            yield name, number
    yield from _checks(exchange)


def _asked(exchange: Exchange) -> Iterator[tuple[str, Value]]:
    asked = exchange.asked
    if asked is None:
        return
    yield "gen_ai.operation.name", asked.operation
    yield "gen_ai.provider.name", exchange.engine
    yield "gen_ai.request.model", shown(asked.model)
    yield "gen_ai.request.stream", exchange.stream
    if asked.choices != 1:
        yield "gen_ai.request.choice.count", asked.choices
    if asked.max_output_tokens is not None:
        yield "gen_ai.request.max_tokens", asked.max_output_tokens
    if exchange.upstream is not None:
        yield from _server(exchange.upstream).items()
    yield "poolgate.bytes_in", asked.size


def _answered(exchange: Exchange) -> Iterator[tuple[str, Value]]:
    if exchange.stream and exchange.ttft is not None:
        yield "gen_ai.response.time_to_first_chunk", exchange.ttft
    seen = exchange.observation
    if seen is None:
        return
    if seen.finish_reasons:
        reasons = [one if one in REASONS else "other" for one in seen.finish_reasons]
        yield "gen_ai.response.finish_reasons", reasons
    usage = seen.usage
    if usage is None:
        return
    for name, tokens in (
        ("gen_ai.usage.input_tokens", usage.prompt_tokens),
        ("gen_ai.usage.output_tokens", usage.completion_tokens),
        ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
    ):
        if tokens is not None:
            yield name, tokens


def _checks(exchange: Exchange) -> Iterator[tuple[str, Value]]:
    for check in exchange.checks:
        yield f"poolgate.check.{check.check}", str(check.verdict)
        if check.reason:
            yield f"poolgate.check.{check.check}.reason", check.reason
    if exchange.incidents:
        yield "poolgate.incidents", tuple(exchange.incidents)
    if exchange.withheld is not None:
        yield "poolgate.withheld_at", exchange.withheld.backend


def _name(exchange: Exchange) -> str:
    """What was asked of which model, where a backend served it; else the endpoint.

    A model's name is the client's word: of those no backend knows there is no end.
    """
    asked, route = exchange.asked, _route(exchange)
    if asked is not None and exchange.backend != "none" and 0 < exchange.status < 400:
        return f"{asked.operation} {shown(asked.model)}".rstrip()
    method = exchange.method if exchange.method in METHODS else "HTTP"
    return f"{method} {route}" if route is not None else method


def _route(exchange: Exchange) -> str | None:
    """The endpoint; None where there is none: a path that did not match may hold anything."""
    known = (exchange.method, exchange.path) == models.ROUTE
    return exchange.path if known or routes.match(exchange.method, exchange.path) else None


def _error(exchange: Exchange) -> str | None:
    if exchange.refusal is not None or exchange.outcome in _UNWELL:
        return exchange.outcome
    return str(exchange.status) if exchange.status >= 400 else None


@lru_cache(maxsize=1000)
def _server(url: str) -> Mapping[str, Value]:
    """A backend's address, as both conventions call it."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}
