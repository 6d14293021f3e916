"""Exchanges as OpenTelemetry spans: made once they are over, exported in the background.

The only module that knows the SDK, which is an extra (``poolgate[otel]``) and imported where
telemetry is configured. Names are those of the semantic conventions for generative AI and HTTP;
what they have no name for is ``poolgate.*``. No attribute holds text, keys or header values.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from uuid import uuid4

import requests
from multidict import CIMultiDictProxy
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.edge import spans
from gateway.edge.exchange import Exchange
from gateway.edge.metrics import Metrics
from gateway.edge.trace import HEADERS, Trace
from gateway.settings.observing import CollectorTls, Telemetry

QUEUE = 4096  # spans that may wait for the collector; more are dropped, and counted
BATCH = 256  # spans in one export: some milliseconds to encode, on the exporter's thread
EVERY = 2000.0  # milliseconds between exports
PATIENCE = 5.0  # seconds for one export, retries included
LAST_WORDS = 3.0  # seconds at the end for what still waits
COMPLAIN = 60.0  # seconds between two log lines about a collector that does not take spans
TRACES = "/v1/traces"


class OpenTelemetry:
    """Traces of exchanges. ``close`` when nothing is recorded any more."""

    def __init__(self, settings: Telemetry, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._clock = clock
        self._sampler = TraceIdRatioBased(settings.sample)
        self._exporter = _Exporter(settings, metrics)
        self._ids = _Ids()
        # Whether an exchange is sampled was decided at its start; what is not is never made.
        self._provider = TracerProvider(
            ALWAYS_ON, _resource(settings), shutdown_on_exit=False, id_generator=self._ids
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, QUEUE, EVERY, BATCH, PATIENCE * 1000)
        )
        self._tracer = self._provider.get_tracer("poolgate", __version__)

    def begin(self, headers: CIMultiDictProxy[str]) -> Trace:
        """Ids for an exchange, and whether it is sampled. The client's only where it is trusted."""
        caller = _caller(headers) if self.settings.trust_traceparent else None
        parent = trace.get_current_span(caller).get_span_context() if caller else None
        trace_id, span_id, engine_id = _fresh(128, 64, 64)  # at once: each draw is a system call
        if parent:
            trace_id = parent.trace_id
        return Trace(
            trace_id,
            span_id,
            engine_id,
            sampled=parent.trace_flags.sampled if parent else self._sampled(trace_id),
            parent_id=parent.span_id if parent else None,
            state=parent.trace_state.to_header() if parent else "",
        )

    def _sampled(self, trace_id: int) -> bool:
        decision = self._sampler.should_sample(None, trace_id, "").decision
        return decision is Decision.RECORD_AND_SAMPLE

    def write(self, exchange: Exchange) -> None:
        """Queue the spans of an exchange that is over; without room they are dropped."""
        if exchange.trace is None or not exchange.trace.sampled:
            return
        told = spans.spans(exchange, exchange.trace, self._clock())
        if self._exporter.room(len(told)):
            offset = datetime.now(UTC).timestamp() - self._clock()
            for span, new in zip(told, _fresh(*[64] * len(told)), strict=True):
                self._ids.trace_id, self._ids.span_id = exchange.trace.trace_id, span.id or new
                self._make(span, exchange.trace, offset)

    def _make(self, span: spans.Span, place: Trace, offset: float) -> None:
        made = self._tracer.start_span(
            span.name,
            _within(place, span.parent),
            SpanKind[span.kind],
            span.attributes,
            start_time=_nanoseconds(span.began + offset),
        )
        if span.failed:
            made.set_status(Status(StatusCode.ERROR))
        made.end(_nanoseconds(span.ended + offset))

    async def close(self) -> None:
        """Export what waits, for a moment at most."""
        ending = asyncio.get_running_loop().run_in_executor(None, self._provider.shutdown)
        done, _ = await asyncio.wait([ending], timeout=LAST_WORDS)
        if not done:
            self._exporter.give_up()
            await ending


class _Ids(IdGenerator):
    """Ids that were given out before their spans are made."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Exporter(SpanExporter):
    """OTLP's, counted. ``export`` runs on the exporter's thread, ``room`` on the event loop.

    Each number has one writer, so no lock is needed; a difference seen late only means that room is
    found a moment later.
    """

    def __init__(self, settings: Telemetry, metrics: Metrics) -> None:
        self._count = metrics.spans
        self._taken = self._settled = 0
        self._ended = False
        session = requests.Session()
        session.trust_env = False  # no proxy, no .netrc: only what the configuration says
        session.hooks["response"].append(_no_redirect)
        self._quiet = _SeldomFailures()
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(self._quiet)
        tls = settings.tls or CollectorTls()
        self._otlp = OTLPSpanExporter(
            settings.otlp.removesuffix(TRACES) + TRACES,
            certificate_file=tls.ca,
            client_key_file=tls.key,
            client_certificate_file=tls.certificate,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            timeout=PATIENCE,
            compression=Compression.Gzip,
            session=session,
        )

    def room(self, spans: int) -> bool:
        """Whether so many more may wait. They are counted as taken, or as dropped."""
        if self._taken - self._settled + spans > QUEUE:
            self._count.labels("dropped").inc(spans)
            return False
        self._taken += spans
        return True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._otlp.export(spans)
        finally:
            self._settled += len(spans)
            sent = result is SpanExportResult.SUCCESS
            self._count.labels("exported" if sent else "failed").inc(len(spans))
        return result

    def give_up(self) -> None:
        """Fail what is being sent or would be."""
        self.shutdown()

    def shutdown(self) -> None:
        if not self._ended:
            self._ended = True
            self._otlp.shutdown()  # type: ignore[no-untyped-call]
            logging.getLogger(OTLPSpanExporter.__module__).removeFilter(self._quiet)


class _SeldomFailures(logging.Filter):
    """Of what the exporter logs, an error a minute: each export to a dead collector makes several.

    The metric counts them all.
    """

    _said = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR or record.created < self._said + COMPLAIN:
            return False
        self._said = record.created
        return True


def _no_redirect(answer: requests.Response, *_: object, **__: object) -> None:
    """The exporter takes a redirect for a success."""
    if 300 <= answer.status_code < 400:
        answer.close()
        raise requests.RequestException(f"the collector answered {answer.status_code}")


def _resource(settings: Telemetry) -> Resource:
    """What the spans are of: this process."""
    return Resource(
        {
            "service.name": "poolgate",
            "service.version": __version__,
            "service.instance.id": str(uuid4()),
            **settings.resource,
        }
    )


def _caller(headers: CIMultiDictProxy[str]) -> Context | None:
    """The client's place in its trace; None where it tells none, or not clearly."""
    carrier = {name: ",".join(headers.getall(name, ())) for name in HEADERS}
    context = TraceContextTextMapPropagator().extract(carrier, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def _within(place: Trace, parent: int | None) -> Context:
    """The context in which a span's parent is ``parent``; without one it begins the trace."""
    if parent is None:
        return Context()
    context = SpanContext(
        place.trace_id,
        parent,
        is_remote=parent == place.parent_id,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=TraceState.from_header([place.state]),
    )
    return trace.set_span_in_context(NonRecordingSpan(context), Context())


def _fresh(*bits: int) -> list[int]:
    """Random ids of so many bits each; zero is none."""
    drawn, found = secrets.randbits(sum(bits)), []
    for size in bits:
        found.append(drawn % 2**size or 1)
        drawn >>= size
    return found


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
