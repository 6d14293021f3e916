"""Clients' connections: how many there may be, and how long one may keep us waiting.

A connection is held by who sends its head byte by byte, or takes none of its answer. Both are ended
by one sweep over all connections, which costs a request nothing but noting when it began to wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import cast

from aiohttp import web

from gateway.core.connections import ConnectionRules
from gateway.edge import framing
from gateway.edge.handler import Handler, bare_refusal
from gateway.edge.metrics import Metrics
from gateway.edge.relay import ClientGone
from gateway.errors import Kind, Rejection

LINE = FIELD = 8190  # bytes of a request line, and of a header's name or value
HEADERS = 128  # of one request
LINGER = 5.0  # seconds in which a refused client may read its answer while it still sends


class Connections:
    """All clients' connections of this process. ``rules`` are asked anew each time."""

    def __init__(
        self, rules: Callable[[], ConnectionRules], metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._rules = rules
        self._metrics = metrics
        self.clock = clock
        self._open: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._next: asyncio.TimerHandle | None = None

    @property
    def rules(self) -> ConnectionRules:
        """The rules in force."""
        return self._rules()

    def begin(self) -> None:
        """Sweep from now on."""
        self._next = asyncio.get_running_loop().call_later(self.rules.sweep, self._sweep)

    def stop(self) -> None:
        """Sweep no more."""
        if self._next is not None:
            self._next.cancel()

    def enter(self, connection: Connection) -> bool:
        """Count a new connection in; False where there are too many."""
        rules, address = self.rules, connection.address
        if rules.total is not None and len(self._open) >= rules.total:
            return self._ended("total")
        if rules.per_address is not None and self._by_address[address] >= rules.per_address:
            return self._ended("per_address")
        self._open.add(connection)
        self._by_address[address] += 1
        self._metrics.connections.inc()
        return True

    def leave(self, connection: Connection) -> None:
        """One that was counted in is over; others are ignored."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._metrics.connections.dec()
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def _sweep(self) -> None:
        rules, now = self.rules, self.clock()
        for connection in tuple(self._open):
            if reason := connection.overdue(rules, now):
                self._ended(reason)
                connection.abort()
        self.begin()

    def _ended(self, reason: str) -> bool:
        self._metrics.connections_ended.labels(reason).inc()
        return False


class Connection(web.RequestHandler):
    """aiohttp's HTTP/1 protocol, which notes since when its client keeps it waiting."""

    __slots__ = ("_all", "_head_since", "_stalled_since", "_wire", "address")

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, **options: object) -> None:
        super().__init__(server, loop=loop, **options)  # type: ignore[arg-type]
        self._all = server.all
        self._head_since: float | None = None
        self._stalled_since: float | None = None
        self._wire: asyncio.Transport | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it, or say that there are too many and hang up."""
        self._wire = wire = cast("asyncio.Transport", transport)  # served over streams only
        self.address = _network(transport.get_extra_info("peername"))
        if not self._all.enter(self):
            wire.write(bare_refusal(_TOO_MANY))
            wire.close()
            return
        self._head_since = self._all.clock()
        super().connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        """It is over, by whomever."""
        self._all.leave(self)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Bytes that complete no request while one is waited for are the begin of a head."""
        super().data_received(data)
        if self._messages:
            self._tell_of_broken_body()
        if self._waiter is None or self._waiter.done():
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self._all.clock()

    def _tell_of_broken_body(self) -> None:
        """Bytes that break a body queue an error behind its request, whose reader waits on."""
        if not hasattr(self._messages[-1][0], "exc"):
            return
        body = self._messages[-2][1] if len(self._messages) > 1 else None
        if body is None and self._current_request is not None:
            body = self._current_request.content
        if body is not None and not body.is_eof():
            body.set_exception(web.RequestPayloadError("malformed"))
            body.feed_eof()  # or the server would go on to wait for the rest

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._stalled_since = self._all.clock()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has taken nearly all that waited."""
        self._stalled_since = None
        super().resume_writing()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,  # noqa: ARG002
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """What the parser refused, in a dialect's shape. Not logged: a client could flood that."""
        if request.writer.output_size > 0 or isinstance(exc, ClientGone):
            raise ConnectionError("nobody is left to be told")
        handler = self._request_handler
        if not isinstance(handler, Handler):  # the connection is closed
            raise ConnectionError("nobody is left to be told")
        return handler.refuse_unparsed(framing.unparsed(exc))

    def overdue(self, rules: ConnectionRules, now: float) -> str | None:
        """Why it must end, if it must."""
        if self._stalled_since is not None and now - self._stalled_since > rules.write_idle:
            return "write_idle"
        if self._head_since is not None and now - self._head_since > rules.head:
            return "headers"
        if self._wire is not None and self._wire.is_closing() and self._stalled_since is None:
            self._stalled_since = now  # what is left to write may find no taker either
        return None

    def abort(self) -> None:
        """End it at once, whatever is still to be written."""
        if self._wire is not None:
            self._wire.abort()


class Server(web.Server):
    """aiohttp's low-level server: no router, no middleware, so no second opinion on paths.

    Cancelling the handler is how a client's leaving reaches the engine. Nothing is decompressed:
    bodies that would need it are refused.
    """

    def __init__(self, handler: Handler, connections: Connections, **options: object) -> None:
        super().__init__(handler, handler_cancellation=True, **options)  # type: ignore[arg-type]
        self.all = connections

    def __call__(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(
            self,
            self._loop,
            keepalive_timeout=self.all.rules.keep_alive,
            auto_decompress=False,
            max_line_size=LINE,
            max_field_size=FIELD,
            max_headers=HEADERS,
            lingering_time=LINGER,
            **self._kwargs,
        )


_TOO_MANY = Rejection(
    Kind.TOO_MANY_CONNECTIONS, "There are too many connections; try again later.", retry_after=1
)


def _network(peer: object) -> str:
    """What connections are counted by: an IPv4 address, or the /64 one customer has of IPv6."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or (int(address) >> 64))
