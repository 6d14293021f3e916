"""From an admitted request to its answer: open the engine, inspect what comes, pass it on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aiohttp import web
from msgspec import Struct

from gateway.core import attestation
from gateway.core.tenants import Tenant
from gateway.dialects import wire
from gateway.dialects.base import AnswerReader, Dialect
from gateway.edge import relay
from gateway.edge.actions import Actions
from gateway.edge.attempts import Attempt
from gateway.edge.backends import Backend
from gateway.edge.counting import Threads
from gateway.edge.exchange import Exchange
from gateway.edge.fingerprints import Fingerprints
from gateway.edge.inspection import CheckPolicy, Inspection
from gateway.edge.recollection import Recollection, Recollections
from gateway.edge.record import Recorder
from gateway.edge.sentinels import Hearing, SentinelDesk
from gateway.edge.shadow import Later, Shadow
from gateway.edge.tasks import Tasks
from gateway.edge.trace import HEADERS
from gateway.edge.upstream import NotSent, Upstream, UpstreamAnswer, address, request_headers
from gateway.edge.watch import Watch
from gateway.errors import Kind, Rejection
from gateway.types import Bounded, Counted, ParsedRequest


class Call(Struct, frozen=True):
    """An admitted request on its way; ``isolated``: the members that must not reach an engine."""

    request: web.BaseRequest
    dialect: Dialect
    parsed: ParsedRequest
    tenant: Tenant
    backend: Backend
    isolated: wire.Edits
    exchange: Exchange

    def body(self, *, with_id: bool) -> wire.Pieces:
        """The bytes for the engine: the client's, with point edits. ``with_id``: our request id."""
        backend, parsed = self.backend, self.parsed
        edits = {
            **self.isolated,
            **self.dialect.edits(parsed),
            **salted(backend, self.tenant, parsed),
            **(identified(backend, parsed, self.exchange.request_id) if with_id else {}),
        }
        return wire.edited(parsed.raw, edits, parsed.body.keys())


# The same call at another backend, if any; told whether this one was sent.
Elsewhere = Callable[[Call, bool], Awaitable[Call | None]]


class Forwarder:
    """Carries calls to engines. Holds what all calls share."""

    def __init__(
        self,
        upstream: Upstream,
        recorder: Recorder,
        tasks: Tasks,
        threads: Threads,
        clock: Callable[[], float],
        *,
        checks: CheckPolicy,
        actions: Actions,
        recollections: Recollections,
        sentinels: SentinelDesk | None = None,
        fingerprints: Fingerprints | None = None,
    ) -> None:
        self._upstream = upstream
        self._recorder = recorder
        self._tasks = tasks
        self._threads = threads
        self._clock = clock
        self._checks = checks
        self._actions = actions
        self._recollections = recollections
        self._sentinels = sentinels
        self._fingerprints = fingerprints

    async def forward(
        self, call: Call, attempt: Attempt, elsewhere: Elsewhere | None = None
    ) -> web.StreamResponse | Call:
        """The engine's answer, inspected. Raises ``Rejection`` where there is none to give.

        Where nothing was sent, or a check withheld the answer before anything of it was released,
        ``elsewhere`` may have a call to make instead: then that is returned, and nothing of this
        one is recorded as the exchange's outcome. Nothing else is asked twice: it may be under way.
        """
        exchange, backend = call.exchange, call.backend
        watch = None
        if self._fingerprints is not None:
            watch = self._fingerprints.watch(backend, call.parsed, call.tenant)
        shadow, hearing = self._shadow(call, watch), self._hearing(call)
        run = backend.neighbours.begin()
        inspection = Inspection(
            call.parsed,
            backend,
            exchange,
            self._checks,
            self._actions,
            shadow,
            run,
            hearing=hearing,
            watch=watch,
        )
        other: Call | None = None
        later = self._threads.after_sending(call.parsed, shadow.begin)
        try:
            return await self._answer(call, attempt, inspection)
        except Rejection as refusal:
            # Out of ``_answer`` it comes only while nothing has been released.
            sent = not isinstance(refusal, NotSent)
            if elsewhere is not None and (refusal.kind is Kind.WITHHELD or not sent):
                other = await elsewhere(call, sent)
            if other is None:
                raise
            return other
        finally:
            later.cancel()
            backend.neighbours.end(run)
            if shadow.past is not None:
                shadow.past.begin()  # it may be in the engine's cache, however this ended
            if other is None:
                await self._conclude(exchange, inspection)

    def _hearing(self, call: Call) -> Hearing | None:
        if self._sentinels is None:
            return None
        return self._sentinels.hearing(call.parsed, call.tenant.id, call.exchange.request_id)

    def _shadow(self, call: Call, watch: Watch | None) -> Shadow:
        """What the checks will need and admission did not."""
        backend, length, tenant = call.backend, call.exchange.length, call.tenant.id
        past = self._recollection(call)
        count = None
        if isinstance(length, Bounded):
            count = Later(
                lambda: self._tasks.spawn(
                    backend.measurer.exact(call.parsed, tenant), "shadow count"
                )
            )
        return Shadow(count, past, watch)

    def _recollection(self, call: Call) -> Recollection | None:
        """For the checks of latency and of cached tokens, where either can be made."""
        backend, length = call.backend, call.exchange.length
        past = None
        if self._checks.latency is not None and isinstance(length, Counted | Bounded):
            past = backend.prefixes if backend.prefill.teaches(length.total) else None
        texts = self._texts(call)
        if past is None and texts is None:
            return None
        return Recollection(
            self._recollections,
            call.parsed,
            call.tenant.id,
            texts=texts,
            past=past,
            threads=self._threads,
            spawn=self._tasks.spawn,
        )

    def _texts(self, call: Call) -> tuple[str, ...] | None:
        """For the check of cached tokens: only where no one else can have the tenant's salt."""
        own_salt = salted(call.backend, call.tenant, call.parsed)
        if not (own_salt and call.backend.wiring.salt_is_ours):
            return None
        texts = attestation.texts_of(call.parsed)
        if texts is None:
            self._recollections.raw.add(call.tenant.id)
        return texts

    async def _answer(
        self, call: Call, attempt: Attempt, inspection: Inspection
    ) -> web.StreamResponse:
        async with await self._open(call, attempt) as answer:
            passage = self._passage(call, answer, inspection)
            try:
                if passage.streams:
                    return await relay.pass_stream(passage)
                return await relay.pass_whole(passage)
            except (asyncio.CancelledError, relay.ClientGone):
                if call.backend.wiring.drain_on_disconnect:
                    reading = _read_on(call, answer.detach(), passage.reader)
                    call.exchange.reading_on = self._tasks.spawn(reading, "drain")
                raise
            except Rejection as refusal:
                withheld = refusal.kind is Kind.WITHHELD
                if withheld and call.backend.wiring.drain_on_disconnect:
                    # Not of this exchange any more, which may go on elsewhere.
                    self._tasks.spawn(relay.read_out(answer.detach(), passage.reader), "drain")
                raise
            finally:
                call.exchange.observation = passage.reader.result()

    def _passage(self, call: Call, answer: UpstreamAnswer, inspection: Inspection) -> relay.Passage:
        headers = answer.headers()
        headers.update(call.exchange.answer_headers())
        reader = _reader(call, answer)
        if inspection.hearing is not None:
            reader = inspection.hearing.reader(reader, answer, streams=relay.streams(answer))
        return relay.Passage(
            request=call.request,
            answer=answer,
            reader=reader,
            inspection=inspection,
            dialect=call.dialect,
            exchange=call.exchange,
            headers=headers,
            clock=self._clock,
        )

    async def _open(self, call: Call, attempt: Attempt) -> UpstreamAnswer:
        """The engine's answer as soon as it begins.

        Under ``on_disconnect: drain`` a client that leaves during prefill does not cancel it:
        cancelling there is what corrupts other requests on some prefill/decode engines.
        """
        exchange, backend = call.exchange, call.backend
        headers = request_headers(call.request.headers, exchange.request_id, backend.wiring.api_key)
        if backend.traits.closes_after_stream and call.parsed.stream:
            headers["Connection"] = "close"  # else the next request goes to a dead connection
        if exchange.trace is not None:
            for name in HEADERS:
                headers.popall(name, None)
            headers.update(exchange.trace.headers())
        exchange.forwarded_at, exchange.upstream = self._clock(), backend.wiring.url
        opening = self._upstream.open(
            address(backend.wiring.url, exchange.path, exchange.query),
            headers,
            call.body(with_id=self._checks.binding is not None),
            attempt,
            backend.wiring.tls,
        )
        try:
            if not backend.wiring.drain_on_disconnect:
                return await opening
            task = self._tasks.spawn(opening, "open", raises=Rejection)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                exchange.reading_on = self._tasks.spawn(self._drain(task, call), "drain")
                raise
        except Rejection:
            backend.discovery.ask_soon()
            raise

    async def _drain(self, opening: asyncio.Task[UpstreamAnswer], call: Call) -> None:
        with contextlib.suppress(Rejection):
            answer = await opening
            await _read_on(call, answer, _reader(call, answer))

    async def _conclude(self, exchange: Exchange, inspection: Inspection) -> None:
        """Judge what is left; a count still being made does not keep the client waiting."""
        if inspection.counting:
            exchange.settled_elsewhere = True
            exchange.users.begin()
            self._tasks.spawn(self._settle(exchange, inspection), "settle")
        else:
            await inspection.finish()

    async def _settle(self, exchange: Exchange, inspection: Inspection) -> None:
        try:
            await inspection.finish()
        finally:
            exchange.users.end()
            self._recorder.write(exchange)


async def _read_on(call: Call, answer: UpstreamAnswer, reader: AnswerReader) -> None:
    """Read what nobody waits for any more, for the engine's sake and for what it showed."""
    try:
        await relay.read_out(answer, reader)
    finally:
        call.exchange.observation = reader.result()
        call.backend.refused(answer.status, reader.failure)


def _reader(call: Call, answer: UpstreamAnswer) -> AnswerReader:
    return call.dialect.reader(
        call.parsed,
        status=answer.status,
        content_type=answer.content_type,
        content_encoding=answer.content_encoding,
    )


def salted(backend: Backend, tenant: Tenant, parsed: ParsedRequest) -> wire.Edits:
    """The edit that keeps this tenant's prefix cache its own, where engine and dialect have one."""
    field = backend.traits.salt_fields.get(parsed.dialect)
    if field is None or backend.wiring.salt is None:
        return {}
    salt = backend.wiring.salt(tenant.id)[: backend.traits.salt_max_chars]
    return {field: wire.encode(salt)}


def identified(backend: Backend, parsed: ParsedRequest, request_id: str) -> wire.Edits:
    """The edit that gives the engine our id for the request, where it takes one in the body.

    In /v1/responses it becomes the answer's whole id, which clients expect to begin so.
    """
    field = backend.traits.id_fields.get(parsed.dialect)
    if field is None:
        return {}
    prefix = "resp_" if parsed.dialect == "openai_responses" else ""
    return {field: wire.encode(prefix + request_id)}
