"""Passing an engine's answer to the client: whole answers after their checks, streams as they come.

What has left cannot be called back, so the two ways differ in where a check can still act: a
whole answer is held until it was judged, a stream only until its first byte was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDict

from gateway.dialects.base import AnswerReader, Dialect
from gateway.edge.exchange import Exchange
from gateway.edge.inspection import Inspection
from gateway.edge.upstream import UpstreamAnswer
from gateway.errors import Kind, Rejection
from gateway.types import Ending

EVENT_STREAM = "text/event-stream"
MOST_HELD = 256 * 2**20  # bytes of an answer that is no stream; embeddings of a batch are large


class ClientGone(Exception):
    """The client hung up while its answer was being written."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One answer on its way through: where from, where to, and who looks at it."""

    request: web.BaseRequest
    answer: UpstreamAnswer
    reader: AnswerReader
    inspection: Inspection
    dialect: Dialect
    exchange: Exchange
    headers: CIMultiDict[str]
    clock: Callable[[], float]

    @property
    def streams(self) -> bool:
        """Whether the engine streams; it may not although it was asked to."""
        return streams(self.answer)

    @property
    def is_legible(self) -> bool:
        """Whether the bytes are the text, and not compressed."""
        return self.answer.content_encoding.strip().lower() in ("", "identity")

    @property
    def since_sent(self) -> float:
        """Seconds since the request went to the engine."""
        return self.clock() - self.answer.sent_at


def streams(answer: UpstreamAnswer) -> bool:
    """Whether an answer is an event stream."""
    return answer.status < 400 and answer.content_type.startswith(EVENT_STREAM)


async def pass_whole(passage: Passage) -> web.Response:
    """Read it all, judge it, release it. Raises ``Rejection`` where it broke or is withheld."""
    answer, reader = passage.answer, passage.reader
    parts: list[bytes] = []
    size = 0
    while chunk := await answer.read():
        if not parts and answer.status < 400:
            await passage.inspection.first_byte(passage.since_sent)
        size += len(chunk)
        if size > MOST_HELD:
            raise Rejection(Kind.UPSTREAM_BROKE, "The engine's answer is too large to be checked.")
        parts.append(reader.receive(chunk))
    parts.append(reader.end())
    passage.inspection.failed(answer.status, reader.failure)
    if passage.inspection.alarmed:
        parts.append(await passage.inspection.hear())
    body = b"".join(parts)
    if answer.status < 300:  # what an engine says of a redirect is not an answer
        passage.inspection.identified(reader.new_ids)
        if passage.is_legible:
            await passage.inspection.hear_body(body)
        await passage.inspection.at_end(reader.result())
    passage.exchange.status = answer.status
    passage.exchange.bytes_out = len(body)
    return web.Response(status=answer.status, headers=passage.headers, body=body)


async def pass_stream(passage: Passage) -> web.StreamResponse:
    """Release each event as it comes, once the first byte was judged; the end may wait for more.

    While nothing was released a failure is raised as ``Rejection`` and gets an ordinary error
    answer; after that, the client gets an error event and an aborted connection, never a clean
    end: an answer that was cut must not look complete.
    """
    answer, reader, inspection = passage.answer, passage.reader, passage.inspection
    outlet = _Outlet(passage)
    chunk = await answer.read()
    await inspection.first_byte(passage.since_sent)
    held = b""
    try:
        while chunk:
            events = reader.receive(chunk)
            if inspection.alarmed or inspection.watches:
                events = await _heard(passage, events)
            _told(passage)
            held = held + events if held else events
            if held and not inspection.holds(reader):
                await outlet.write(held)
                held = b""
            chunk = await answer.read()
        held += await _heard(passage, reader.end())
        _told(passage)
        _require_whole(reader)
        await inspection.at_end(reader.result())
    except Rejection as refusal:
        if outlet.response is None:
            raise
        return await _break_off(passage, outlet.response, refusal)
    return await outlet.finish(held)


class _Outlet:
    """The client's side of a stream: its head goes out with the first bytes released."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self.response: web.StreamResponse | None = None

    async def write(self, data: bytes) -> None:
        response = self.response
        if response is None:
            response = await self._open()
        try:
            await response.write(data)
        except ConnectionError as error:
            raise ClientGone from error
        self._passage.exchange.bytes_out += len(data)

    async def finish(self, data: bytes) -> web.StreamResponse:
        response = self.response
        if response is None:
            response = await self._open()
        self._passage.exchange.bytes_out += len(data)
        await _to_client(response.write_eof(data))
        return response

    async def _open(self) -> web.StreamResponse:
        passage = self._passage
        response = web.StreamResponse(status=passage.answer.status, headers=passage.headers)
        self.response = response
        await _to_client(response.prepare(passage.request))
        passage.exchange.status = response.status
        return response


async def read_out(answer: UpstreamAnswer, reader: AnswerReader) -> None:
    """Read an answer nobody waits for any more to its end (``on_disconnect: drain``)."""
    with contextlib.suppress(Rejection):
        async with answer:
            while chunk := await answer.read():
                reader.receive(chunk)
            reader.end()


async def _heard(passage: Passage, events: bytes) -> bytes:
    """The events, once they were looked into. Raises ``Rejection`` where they are withheld."""
    inspection = passage.inspection
    if inspection.alarmed:
        events += await inspection.hear()
    if events and inspection.watches and passage.is_legible:
        await inspection.hear_events(events)
    return events


def _told(passage: Passage) -> None:
    """What the last bytes told of the answer as a whole, before they go out."""
    reader, inspection = passage.reader, passage.inspection
    if ids := reader.new_ids:
        inspection.identified(ids)
    if failure := reader.failure:
        inspection.failed(passage.answer.status, failure)


def _require_whole(reader: AnswerReader) -> None:
    """A stream that ended without its terminal event was cut, however cleanly the bytes ended."""
    if reader.result().ending is Ending.TRUNCATED:
        raise Rejection(Kind.UPSTREAM_BROKE, "The engine broke off its answer.")


async def _break_off(
    passage: Passage, response: web.StreamResponse, why: Rejection
) -> web.StreamResponse:
    """Say why, then close without the terminating chunk. What was held stays here."""
    if why.kind is Kind.WITHHELD:  # else how it ended is the engine's doing, and told as that
        passage.exchange.refusal = why.kept()
    with contextlib.suppress(ConnectionError):
        await response.write(passage.dialect.stream_error(why))
    if passage.request.transport is not None:
        passage.request.transport.close()
    return response


async def _to_client(writing: Awaitable[object]) -> None:
    try:
        await writing
    except ConnectionError as error:
        raise ClientGone from error
