"""The data plane's one handler: the straight line, and the one rescue."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus

from aiohttp import web

from gateway.core.admission import decide, effective_limit, require_short, settles
from gateway.core.quarantine import State
from gateway.core.tenants import Tenant, TenantDirectory, allowed, identify
from gateway.dialects import isolation, routes
from gateway.dialects.base import Dialect
from gateway.edge import framing, models, relay
from gateway.edge.backends import Backend, choose, quarantined
from gateway.edge.bodies import read_body
from gateway.edge.counting import Threads
from gateway.edge.exchange import Asked, Exchange, Stage, Users
from gateway.edge.forward import Call, Elsewhere, Forwarder
from gateway.edge.limiting import Limiting
from gateway.edge.logs import place
from gateway.edge.queueing import queued
from gateway.edge.record import Recorder, Tracing
from gateway.edge.sentinels import MOST_TOKENS, SentinelDesk
from gateway.errors import Kind, Rejection
from gateway.types import Bounded, Counted, ParsedRequest, Unverifiable

log = logging.getLogger(__name__)
LARGE_BODY = 512 * 1024  # bytes; of the worst shape, that is tens of milliseconds
# After these nothing that follows on the connection can be trusted to be a request.
LAST_ONE = frozenset({Kind.BAD_FRAMING, Kind.HEADERS_TOO_LARGE, Kind.SLOW_BODY})


@dataclass(frozen=True, slots=True)
class Runtime:
    """One configuration, running. A request holds on to the one it began with."""

    backends: tuple[Backend, ...]
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
        tenant = identify(tuple(request.headers.items()), runtime.tenants, datetime.now(UTC))
        exchange.tenant = tenant.id
        if dialect is None:
            return _json(exchange, 200, models.listing(runtime.backends, tenant))
        exchange.dialect = dialect.name
        raw = await read_body(request, runtime.max_body_bytes, runtime.body_deadline)
        exchange.stages.append(Stage("read", exchange.started, self._clock()))
        parsed = await _parse(runtime, dialect, exchange.path, raw)
        exchange.stream, exchange.asked = parsed.stream, _asked(dialect, parsed)
        isolated = isolation.isolation_edits(parsed.body)
        backend = _backend_for(runtime, tenant, parsed.model)
        exchange.backend, exchange.engine = backend.name, backend.engine
        exchange.doubt = backend.doubt(parsed.prompt)
        marked = await _marked(runtime, dialect, tenant, parsed)
        if parsed.counts_only:
            exchange.length = await backend.measurer.exact(marked, tenant.id)
            if isinstance(exchange.length, Unverifiable) and marked is not parsed:
                exchange.length = await backend.measurer.exact(parsed, tenant.id)
            decide(exchange.length, None, backend.wiring.outcomes)
            if isinstance(exchange.length, Counted):
                return _json(exchange, 200, dialect.count_answer(exchange.length.total))
        parsed = await _admit_marked(runtime, backend, tenant, marked, parsed, exchange)
        call = Call(request, dialect, parsed, tenant, backend, isolated, exchange)
        async with runtime.limiting.leases.hold(tenant, parsed, exchange, backend.measurer):
            answer = await _send(runtime, call, partial(_elsewhere, runtime.backends))
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


async def _admit_marked(
    runtime: Runtime,
    backend: Backend,
    tenant: Tenant,
    marked: ParsedRequest,
    parsed: ParsedRequest,
    exchange: Exchange,
) -> ParsedRequest:
    """What is sent: the marked request, or the client's own where the marker alone is too much.

    A prompt that fits is never refused for our marker, nor one that the engine's template would
    render without it. Raises ``Rejection`` as ``_admit`` does.
    """
    desk = runtime.sentinels
    if desk is not None and marked is not parsed:
        try:
            await _admit(backend, tenant, marked, exchange)
            outcome = "not_countable" if isinstance(exchange.length, Unverifiable) else "placed"
        except Rejection as refusal:
            outcome = _for_the_marker(refusal)
            if not outcome:
                raise
        desk.note(outcome)
        if outcome == "placed":
            return marked
        exchange.length = None
    await _admit(backend, tenant, parsed, exchange)
    return parsed


def _for_the_marker(refusal: Rejection) -> str:
    """What became of a marker that may be the reason of a refusal; empty where it cannot be."""
    if refusal.kind is Kind.NOT_COUNTABLE:
        return "not_countable"
    too_long = refusal.too_long
    if too_long is not None and too_long.tokens <= too_long.limit + MOST_TOKENS:
        return "no_room"
    return ""


async def _send(
    runtime: Runtime, call: Call, elsewhere: Elsewhere | None
) -> web.StreamResponse | Call:
    async with queued(call.backend, call.tenant, call.exchange) as waited:
        if waited:  # the limit may have fallen meanwhile
            await _admit(call.backend, call.tenant, call.parsed, call.exchange)
        return await runtime.forwarder.forward(call, elsewhere)


async def _elsewhere(backends: Sequence[Backend], call: Call) -> Call | None:
    """The same call at another backend that serves the model and admits the prompt, if any."""
    others = [backend for backend in backends if backend.name != call.backend.name]
    trial = replace(call.exchange, length=None)
    try:
        backend = choose(others, call.parsed.model)
        trial.backend, trial.engine = backend.name, backend.engine
        trial.doubt = backend.doubt(call.parsed.prompt)
        await _admit(backend, call.tenant, call.parsed, trial)
    except Rejection:
        return None
    call.exchange.again(trial)
    return replace(call, backend=backend)


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


def _backend_for(runtime: Runtime, tenant: Tenant, model: str) -> Backend:
    if not allowed(tenant, model):
        raise Rejection(Kind.MODEL_NOT_ALLOWED, "This key may not use that model.", param="model")
    return choose(runtime.backends, model)


async def _admit(
    backend: Backend, tenant: Tenant, parsed: ParsedRequest, exchange: Exchange
) -> None:
    """Length against limit, as both are now. Measures anew only where that settles nothing."""
    if backend.traits.folds_names:
        isolation.require_exact_names(parsed.body)
    limit = effective_limit(
        backend.capacity_for(parsed.model),
        tenant.policy.max_prompt_tokens,
        backend.wiring.outcomes,
    )
    exchange.limit = limit.tokens if limit else None
    length = exchange.length
    if not isinstance(length, Counted | Bounded) or not settles(length, limit):
        began = backend.clock()
        try:
            length = await backend.measurer.measure(parsed, exchange.limit, tenant.id)
        finally:
            exchange.stages.append(Stage("count", began, backend.clock()))
        exchange.length = length
    decide(length, limit, backend.wiring.outcomes)
    standing = backend.standing.state
    if standing is State.QUARANTINED:  # since it was chosen
        raise quarantined()
    if standing is State.SUSPECT:
        if isinstance(length, Bounded) and length.longest > backend.floor:
            exchange.length = length = await backend.measurer.exact(parsed, tenant.id)
        require_short(length, backend.floor)


def _refuse(exchange: Exchange, method: str, refusal: Rejection) -> web.Response:
    """The one place where a refusal becomes a response."""
    exchange.refusal = refusal
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
