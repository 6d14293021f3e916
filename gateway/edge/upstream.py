"""The way to the engine: one session, header hygiene, the four deadlines, one exception map.

A connection goes back to the pool only after its answer was read to the end and uncancelled;
every other way out closes it. That is what keeps one caller's answer from another's ears
(research/detection.md 1.2, aiohttp #12953, OpenAI's incident of March 2023).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Protocol

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway.core.outlier import Failure
from gateway.dialects.wire import Pieces
from gateway.edge.deadline import Deadline
from gateway.edge.outgoing import OutgoingRequest
from gateway.edge.probing import join
from gateway.errors import Kind, Rejection

# Headers of a client's request that an engine may see. All else stays here: keys, cookies,
# forwarding claims, hop-by-hop headers and those an engine would steer by.
FORWARDED = frozenset(
    {
        "accept",
        "anthropic-beta",
        "anthropic-version",
        "content-type",
        "traceparent",
        "tracestate",
        "user-agent",
    }
)
# Headers of an engine's answer that concern its connection with us, or that we set ourselves.
WITHHELD = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
    }
)
# A larger body goes out in slices: as one piece it held the loop for 9 ms at 4 MB under uvloop.
SLICE = 256 * 1024
AT_ONCE = 2**20
NOT_IMPLEMENTED = 501  # a word on the request, unlike every other 5xx
PIECE = 64 * 1024  # bytes of an answer at once: a client that takes none holds few copies of it


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: to connect, to the first byte of the answer, between two reads of it.

    ``first_byte_per_1k``: what each thousand tokens of the prompt add to the first byte's.
    """

    connect: float = 5.0
    first_byte: float = 1800.0
    idle: float = 300.0
    first_byte_per_1k: float = 0.0

    def first(self, tokens: int) -> float:
        """Seconds to the first byte of the answer to a prompt of ``tokens``."""
        return self.first_byte + self.first_byte_per_1k * tokens / 1000


class Teller(Protocol):
    """Who is told what becomes of a request (``gateway.edge.attempts``)."""

    tokens: int

    def answered(self) -> None:
        """The first bytes of an answer are here."""

    def completed(self) -> None:
        """The answer is here, whole."""

    def failed(self, failure: Failure) -> None:
        """The engine failed it."""


class NotSent(Rejection):
    """Nothing of the request has left this process: it may be sent elsewhere."""


class UpstreamAnswer:
    """An engine's answer while it is being read. Use as an async context manager.

    ``sent_at`` is the loop's time when the request began to be sent. An engine may send the head
    of an answer before it prefills: the first piece of the body has the first byte's deadline.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        deadlines: Deadlines,
        sent_at: float,
        teller: Teller,
    ) -> None:
        self._response = response
        self._deadlines = deadlines
        self._teller = teller
        self.sent_at = sent_at
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "")
        self.content_encoding = response.headers.get("Content-Encoding", "")
        content = response.content  # not ``self``: nothing of an answer is to hold itself
        self._deadline = Deadline(lambda: content.set_exception(TimeoutError()))
        self._begun = False  # its first piece is here, or its end
        self._detached = False

    def detach(self) -> UpstreamAnswer:
        """Hand the connection to another owner; leaving this context then closes nothing."""
        self._detached = True
        return UpstreamAnswer(self._response, self._deadlines, self.sent_at, self._teller)

    def headers(self) -> CIMultiDict[str]:
        """What of the answer's headers passes on."""
        received = self._response.headers
        nominated = _nominated(received)
        kept: CIMultiDict[str] = CIMultiDict()
        for name, value in received.items():
            lower = name.lower()
            if (
                lower not in WITHHELD
                and lower not in nominated
                and not lower.startswith(("x-poolgate-", "x-ratelimit-"))
            ):
                kept.add(name, value)
        return kept

    async def read(self) -> bytes:
        """The next piece of the body, at most ``PIECE`` bytes; empty at its end.

        Raises ``Rejection`` (UPSTREAM_BROKE, UPSTREAM_TIMEOUT).
        """
        content = self._response.content
        try:
            if content.is_eof():  # all of it is here: nothing to wait for
                piece = content.read_nowait(-1)
            else:
                if self._begun:
                    self._deadline.begin(self._deadlines.idle)
                else:
                    first = self._deadlines.first(self._teller.tokens)
                    self._deadline.begin_until(self.sent_at + first)
                piece = await content.read(PIECE)
        except TimeoutError as error:
            self._teller.failed(Failure.TIMEOUT)
            if not self._begun:
                raise _no_first_byte(self._deadlines, self._teller) from error
            idle = f"The engine sent nothing for {self._deadlines.idle:g}s (idle)."
            raise Rejection(Kind.UPSTREAM_TIMEOUT, idle) from error
        except (aiohttp.ClientError, OSError) as error:
            self._teller.failed(Failure.BROKE)
            raise Rejection(Kind.UPSTREAM_BROKE, "The engine broke off its answer.") from error
        finally:
            self._deadline.end()
        if not (self._begun and piece):
            self._tell(piece)
        return piece

    def _tell(self, piece: bytes) -> None:
        """The first piece of an answer, or its end."""
        self._begun = True
        if _is_failure(self.status):
            return
        self._teller.answered()
        if not piece:
            self._teller.completed()

    async def __aenter__(self) -> UpstreamAnswer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._deadline.stop()
        # Read to its end, aiohttp has already given the connection back; otherwise it is closed.
        if not self._detached and (kind is not None or not self._response.content.at_eof()):
            self._response.close()


class Upstream:
    """Opens answers. One session serves all backends; redirects are passed on, never followed."""

    def __init__(self, deadlines: Deadlines, *, connections: int = 0) -> None:
        self._deadlines = deadlines
        # Shorter than the 5 s of uvicorn and llama-server, so that we hang up first.
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=4.0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=deadlines.connect)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=OutgoingRequest,
        )

    async def open(
        self,
        url: URL,
        headers: CIMultiDict[str],
        body: Pieces,
        teller: Teller,
        tls: ssl.SSLContext | None = None,
    ) -> UpstreamAnswer:
        """POST ``body`` and wait for the answer's headers. Over https by ``tls``, else by default.

        Raises ``NotSent`` where the engine cannot be reached (UPSTREAM_UNAVAILABLE, or
        UPSTREAM_TIMEOUT of the connection), otherwise ``Rejection``: UPSTREAM_TIMEOUT naming the
        deadline, UPSTREAM_BROKE for anything else.
        """
        loop = asyncio.get_running_loop()
        data: bytes | AsyncIterator[memoryview]
        size = sum(map(len, body))
        if size > AT_ONCE:
            headers["Content-Length"] = str(size)
            data = _slices(body)
        else:
            data = b"".join(body)
        sent_at = loop.time()
        try:
            async with asyncio.timeout(self._deadlines.first(teller.tokens)):
                response = await self._session.post(
                    url,
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                    ssl=tls or True,
                )
        except aiohttp.ConnectionTimeoutError as error:
            error.__traceback__ = None  # aiohttp's hold themselves, and would hold the body here
            teller.failed(Failure.CONNECT)
            raise NotSent(
                Kind.UPSTREAM_TIMEOUT,
                f"No connection to the engine within {self._deadlines.connect:g}s (connect).",
            ) from error
        except TimeoutError as error:
            teller.failed(Failure.TIMEOUT)
            raise _no_first_byte(self._deadlines, teller) from error
        except aiohttp.ClientConnectorError as error:
            error.__traceback__ = None  # likewise
            teller.failed(Failure.CONNECT)
            raise NotSent(
                Kind.UPSTREAM_UNAVAILABLE, "The engine cannot be reached.", retry_after=1
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            teller.failed(Failure.BROKE)
            raise Rejection(
                Kind.UPSTREAM_BROKE, "The engine broke off before it answered."
            ) from error
        if _is_failure(response.status):
            teller.failed(Failure.STATUS)
        return UpstreamAnswer(response, self._deadlines, sent_at, teller)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


@lru_cache(maxsize=1024)
def address(base: str, path: str, query: str) -> URL:
    """Where a request goes: ``path``, and ``query`` as it came, below the backend's base URL.

    Remembered, for taking a URL apart takes longer than all else that is done with it.
    """
    url = join(base, path)
    return URL(f"{url}?{query}" if query else url, encoded=True)


def request_headers(
    client: CIMultiDictProxy[str], request_id: str, api_key: str | None
) -> CIMultiDict[str]:
    """What of a client's headers goes to the engine, with our request id and the engine's key."""
    forwarded = FORWARDED - _nominated(client)
    headers = CIMultiDict(
        (name, value) for name, value in client.items() if name.lower() in forwarded
    )
    headers["Accept-Encoding"] = "identity"  # checks read the answer
    headers["X-Request-Id"] = request_id
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def _is_failure(status: int) -> bool:
    return status >= 500 and status != NOT_IMPLEMENTED


def _no_first_byte(deadlines: Deadlines, teller: Teller) -> Rejection:
    waited = deadlines.first(teller.tokens)
    return Rejection(
        Kind.UPSTREAM_TIMEOUT, f"The engine did not answer within {waited:g}s (first byte)."
    )


def _nominated(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    """The headers, in small letters, that ``Connection`` says concern one connection alone."""
    if "Connection" not in headers:
        return frozenset()
    named = ",".join(headers.getall("Connection", ())).lower().split(",")
    return frozenset(name.strip() for name in named)


async def _slices(body: Pieces) -> AsyncIterator[memoryview]:
    for piece in body:
        view = memoryview(piece)
        for start in range(0, len(view), SLICE):
            yield view[start : start + SLICE]
