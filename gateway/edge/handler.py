"""The data plane's one handler: the straight line, and the one rescue."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus

from aiohttp import web
from msgspec.structs import replace

from gateway.core.tenants import Tenant, TenantDirectory, allowed, identify
from gateway.dialects import isolation, routes
from gateway.dialects.base import Dialect
from gateway.edge import framing, models, placing, relay
from gateway.edge.attempts import attempt
from gateway.edge.backends import Backend
from gateway.edge.bodies import read_body
from gateway.edge.counting import Threads
from gateway.edge.exchange import Asked, Exchange, Stage, Users
from gateway.edge.forward import Call, Elsewhere, Forwarder
from gateway.edge.limiting import Limiting
from gateway.edge.logs import place
from gateway.edge.placing import Submitted
from gateway.edge.queueing import queued
from gateway.edge.record import Recorder, Tracing
from gateway.edge.routing import Routing
from gateway.edge.sentinels import SentinelDesk
from gateway.errors import Kind, Rejection
from gateway.types import ParsedRequest

log = logging.getLogger(__name__)
LARGE_BODY = 512 * 1024  # bytes; of the worst shape, that is tens of milliseconds
# After these nothing that follows on the connection can be trusted to be a request.
LAST_ONE = frozenset({Kind.BAD_FRAMING, Kind.HEADERS_TOO_LARGE, Kind.SLOW_BODY})


@dataclass(frozen=True, slots=True)
class Runtime:
    """One configuration, running. A request holds on to the one it began with."""

    backends: tuple[Backend, ...]
    routing: Routing
    tenants: TenantDirectory
    limiting: Limiting
    forwarder: Forwarder
    threads: Threads
    max_body_bytes: int
    body_deadline: float
    sentinels: SentinelDesk | None = None
    tracing: Tracing | None = None
    users: Users = field(default_factory=Users)


class Handler:
    """Serves the data plane. ``runtime`` is replaced whole on reload."""

    def __init__(self, runtime: Runtime, recorder: Recorder, clock: Callable[[], float]) -> None:
        self.runtime = runtime
        self.draining = False
        self.in_flight = 0
        self._recorder = recorder
        self._clock = clock
        self._ids = _request_ids()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """One exchange: the line, the rescue, the record."""
        path, _, query = request.raw_path.partition("?")
        users, tracing = self.runtime.users, self.runtime.tracing
        exchange = Exchange(next(self._ids), self._clock(), path, query, users)
        exchange.method = request.method
        if tracing is not None:
            exchange.trace, exchange.secure = tracing.begin(request.headers), request.secure
        self.in_flight += 1
        users.begin()
        if self.draining:
            exchange.headers["Connection"] = "close"  # a kept-alive client must move on
        try:
            framing.require_one_reading(request)
            return await self._serve(request, exchange)
        except Rejection as refusal:
            return _refuse(exchange, request.method, refusal)
        except (asyncio.CancelledError, relay.ClientGone):
            exchange.client_gone = True
            raise
        except Exception as error:
            # A bug. Its message may quote a prompt, so only type and place are told.
            log.error(  # noqa: TRY400
                "request %s failed: %s", exchange.request_id, place(error)
            )
            broken = Rejection(Kind.INTERNAL, "The gateway failed to serve this request.")
            return _refuse(exchange, request.method, broken)
        finally:
            exchange.ended = self._clock()
            self.in_flight -= 1
            users.end()
            if self.draining or framing.ends_connection(request):
                request.protocol.close()  # after this answer; sooner, and no body would be read
            if not exchange.settled_elsewhere:
                # Once this step of the loop is over: the answer goes out first.
                asyncio.get_running_loop().call_soon(self._recorder.write, exchange)

    def refuse_unparsed(self, refusal: Rejection) -> web.StreamResponse:
        """The answer to what is no request that could be parsed; recorded like any other."""
        exchange = Exchange(f"req_{secrets.token_hex(16)}", self._clock(), "")
        response = _refuse(exchange, "", refusal)
        self._recorder.write(exchange)
        return response

    async def _serve(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        """The straight line. Each step raises ``Rejection`` where it ends the request."""
        runtime = self.runtime
        dialect = routes.match(request.method, exchange.path)
        if dialect is None and (request.method, exchange.path) != models.ROUTE:
            raise Rejection(Kind.NOT_FOUND, "There is no such endpoint here.")
        tenant = identify(request.headers, runtime.tenants, datetime.now(UTC))
        exchange.tenant = tenant.id
        if dialect is None:
            return _json(exchange, 200, models.listing(runtime.backends, tenant))
        exchange.dialect = dialect.name
        raw = await read_body(request, runtime.max_body_bytes, runtime.body_deadline)
        exchange.stages.append(Stage("read", exchange.started, self._clock()))
        parsed = await _parse(runtime, dialect, exchange.path, raw)
        exchange.stream, exchange.asked = parsed.stream, _asked(dialect, parsed)
        isolated = isolation.isolation_edits(parsed.body)
        serving = _serving(runtime, tenant, parsed.model)
        marked = await _marked(runtime, dialect, tenant, parsed)
        affinity = runtime.routing.affinity(request, tenant, parsed)
        order, asked = runtime.routing.order(parsed, affinity), Submitted(tenant, marked, parsed)
        if parsed.counts_only:
            if (counted := await placing.count(order, asked, exchange)) is not None:
                return _json(exchange, 200, dialect.count_answer(counted.total))
            order = runtime.routing.order(parsed, affinity)
        backend, parsed = await placing.place(order, serving, asked, exchange, runtime.sentinels)
        call = Call(request, dialect, parsed, tenant, backend, isolated, exchange)
        async with runtime.limiting.leases.hold(tenant, parsed, exchange, backend.measurer):
            answer = await _send(runtime, call, partial(_elsewhere, runtime, affinity))
            if isinstance(answer, Call):  # once: a second answer withheld is the last
                answer = await _send(runtime, answer, None)
            assert isinstance(answer, web.StreamResponse)  # noqa: S101 - nowhere else was offered
            return answer


async def _marked(
    runtime: Runtime, dialect: Dialect, tenant: Tenant, parsed: ParsedRequest
) -> ParsedRequest:
    if runtime.sentinels is None:
        return parsed
    return await runtime.sentinels.marked(dialect, parsed, tenant.id)


async def _send(
    runtime: Runtime, call: Call, elsewhere: Elsewhere | None
) -> web.StreamResponse | Call:
    with attempt(call.backend, call.exchange) as trying:
        async with queued(call.backend, call.tenant, call.exchange) as waited:
            if waited:  # the limit may have fallen meanwhile
                await placing.admit(call.backend, call.tenant, call.parsed, call.exchange)
            return await runtime.forwarder.forward(call, trying, elsewhere)


async def _elsewhere(runtime: Runtime, affinity: int, call: Call, sent: bool) -> Call | None:
    """The same call at another backend that serves the model and admits the prompt, if any."""
    try:
        order = runtime.routing.order(call.parsed, affinity, but=call.backend.name)
    except Rejection:
        return None
    found = await placing.readmit(order, call.tenant, call.parsed, call.exchange)
    if found is None:
        return None
    backend, admitted = found
    call.exchange.again(admitted, sent=sent)
    return replace(call, backend=backend)


def _serving(runtime: Runtime, tenant: Tenant, model: str) -> tuple[Backend, ...]:
    if not allowed(tenant, model):
        raise Rejection(Kind.MODEL_NOT_ALLOWED, "This key may not use that model.", param="model")
    return runtime.routing.serving(model)


async def _parse(runtime: Runtime, dialect: Dialect, path: str, raw: bytes) -> ParsedRequest:
    """On a thread where the body is large: a list of a million ids takes tens of milliseconds."""
    if len(raw) <= LARGE_BODY:
        return dialect.parse(path, raw)
    return await runtime.threads.on_thread(lambda: dialect.parse(path, raw))


def _asked(dialect: Dialect, parsed: ParsedRequest) -> Asked:
    return Asked(
        parsed.model,
        "count_tokens" if parsed.counts_only else dialect.operation,
        len(parsed.raw),
        parsed.choices,
        parsed.max_output_tokens,
    )


def _refuse(exchange: Exchange, method: str, refusal: Rejection) -> web.Response:
    """The one place where a refusal becomes a response."""
    exchange.refusal = refusal.kept()
    dialect = routes.match(method, exchange.path) or routes.DEFAULT
    answer = dialect.error(refusal)
    response = _json(exchange, answer.status, answer.body)
    if refusal.kind in LAST_ONE:
        response.force_close()
    if refusal.retry_after is not None:
        response.headers["Retry-After"] = str(refusal.retry_after)
    if refusal.kind is Kind.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def bare_refusal(refusal: Rejection) -> bytes:
    """A refusal as bytes, for a connection on which no request is read."""
    answer = routes.DEFAULT.error(refusal)
    lines = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        *([f"Retry-After: {refusal.retry_after}"] if refusal.retry_after else []),
        "Connection: close",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body


def _json(exchange: Exchange, status: int, body: bytes) -> web.Response:
    exchange.status = status
    return web.Response(
        status=status,
        body=body,
        content_type="application/json",
        headers=exchange.answer_headers(),
    )


def _request_ids() -> Iterator[str]:
    """Random ids of 128 bits. Drawn by the hundred: each call to the system lets a thread in."""
    while True:
        drawn = secrets.token_hex(16 * 256)
        for at in range(0, len(drawn), 32):
            yield f"req_{drawn[at : at + 32]}"
