"""The two listeners, and their orderly end."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from gateway.edge.admin import Admin
from gateway.edge.handler import Handler
from gateway.edge.tasks import Tasks
from gateway.settings import HostPort

log = logging.getLogger(__name__)
POLL = 0.05  # seconds between looks at what still runs while draining


class Servers:
    """Data and admin plane of one process."""

    def __init__(self, handler: Handler, admin: Admin, tasks: Tasks) -> None:
        self._handler = handler
        self._tasks = tasks
        # The low-level server: no router, no middleware, so no second opinion on paths.
        # Cancelling the handler is how a client's leaving reaches the engine. Nothing is
        # decompressed: bodies that would need it are refused.
        server = web.Server(
            handler,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=_protocol_log(),
        )
        self._data = web.ServerRunner(server)
        self._admin = web.AppRunner(admin.application(), access_log=None)
        self.data_port = 0
        self.admin_port = 0

    async def start(self, listen: HostPort, admin: HostPort) -> None:
        """Bind both. Raises ``OSError`` where an address is taken."""
        await self._admin.setup()
        await self._data.setup()
        await web.TCPSite(self._admin, admin.host, admin.port).start()
        await web.TCPSite(self._data, listen.host, listen.port, backlog=1024).start()
        self.admin_port = _port(self._admin)
        self.data_port = _port(self._data)

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
        await self._data.cleanup()
        await self._admin.cleanup()


def _protocol_log() -> logging.Logger:
    """aiohttp's complaints about malformed requests, without what they quote of the request."""
    protocol = logging.getLogger("poolgate.protocol")
    protocol.addFilter(_only_what)
    return protocol


def _only_what(record: logging.LogRecord) -> bool:
    error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    record.msg, record.args = "request refused by the HTTP parser: %s", (error or "protocol error",)
    record.exc_info = record.exc_text = None
    record.levelno, record.levelname = logging.INFO, "INFO"
    return True


def _port(runner: web.BaseRunner) -> int:
    address = runner.addresses[0]
    return int(address[1])
