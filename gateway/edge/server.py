"""The two listeners, and their orderly end."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator, Sequence
from socket import socket
from typing import TypeAlias

from aiohttp import web

from gateway.edge.connections import Connections, Server
from gateway.edge.handler import Handler
from gateway.edge.relay import ClientGone
from gateway.edge.sharing import SharedSite
from gateway.edge.tasks import Tasks
from gateway.edge.tls import Fronts
from gateway.settings import HostPort

log = logging.getLogger(__name__)
POLL = 0.05  # seconds between looks at what still runs while draining
BACKLOG = 1024  # connections that may wait to be accepted
CUT_OFF = 0.5  # seconds for what is cut off to give back what it holds

Place: TypeAlias = HostPort | Sequence[socket]  # an address to bind, or sockets bound for all


class Servers:
    """Data and admin plane of one process."""

    def __init__(
        self,
        handler: Handler,
        connections: Connections,
        admin: web.Application,
        tasks: Tasks,
        fronts: Fronts,
    ) -> None:
        self._handler = handler
        self._connections = connections
        self._fronts = fronts
        self._tasks = tasks
        server = Server(handler, connections, access_log=None, logger=_protocol_log())
        self._data = web.ServerRunner(server, shutdown_timeout=CUT_OFF)
        self._admin = web.AppRunner(admin, access_log=None, shutdown_timeout=CUT_OFF)
        self.data_port = 0
        self.admin_port = 0

    async def start(self, data: Place, admin: Place) -> None:
        """Listen at both. Raises ``OSError`` where an address is taken."""
        await self._admin.setup()
        await self._data.setup()
        for runner, place, context in (
            (self._admin, admin, self._fronts.admin),
            (self._data, data, self._fronts.data),
        ):
            for site in self._sites(runner, place, context):
                await site.start()
        self._connections.begin()
        self.admin_port = _port(self._admin)
        self.data_port = _port(self._data)

    def _sites(
        self, runner: web.BaseRunner, place: Place, context: ssl.SSLContext | None
    ) -> Iterator[web.BaseSite]:
        if isinstance(place, HostPort):
            yield web.TCPSite(runner, place.host, place.port, backlog=BACKLOG, ssl_context=context)
        else:
            for shared in place:
                yield SharedSite(runner, shared, BACKLOG, self._tasks, context)

    async def drain(self, seconds: float) -> bool:
        """Not ready at once, no new connections; wait for what runs. True: all of it ended."""
        self._handler.draining = True
        for site in list(self._data.sites):
            await site.stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._handler.in_flight or len(self._tasks):
            if loop.time() >= deadline:
                log.warning("drain: %d requests cut off", self._handler.in_flight)
                return False
            await asyncio.sleep(POLL)
        return True

    async def stop(self) -> None:
        """Close what is left."""
        self._connections.stop()
        await self._data.cleanup()
        await self._admin.cleanup()


def _protocol_log() -> logging.Logger:
    """What aiohttp says of connections that broke, without what it quotes of requests."""
    protocol = logging.getLogger("poolgate.protocol")
    protocol.addFilter(_only_what)
    return protocol


def _only_what(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    if kind is ClientGone:  # nobody's fault, and in the access record
        return False
    error = kind.__name__ if kind else "protocol error"
    record.msg, record.args = "a client's connection broke: %s", (error,)
    record.exc_info = record.exc_text = None
    record.levelno, record.levelname = logging.INFO, "INFO"
    return True


def _port(runner: web.BaseRunner) -> int:
    """The port of its first address; 0 where it has none of its own."""
    addresses = runner.addresses
    return int(addresses[0][1]) if addresses else 0
