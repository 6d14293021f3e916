"""The two listeners, and their orderly end."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from gateway.edge.admin import Admin
from gateway.edge.handler import Handler
from gateway.edge.tasks import Tasks

log = logging.getLogger(__name__)
POLL = 0.05  # seconds between looks at what still runs while draining


class Servers:
    """Data and admin plane of one process."""

    def __init__(self, handler: Handler, admin: Admin, tasks: Tasks) -> None:
        self._handler = handler
        self._tasks = tasks
        # The low-level server: no router, no middleware, so no second opinion on paths.
        # Cancelling the handler is how a client's leaving reaches the engine.
        self._data = web.ServerRunner(
            web.Server(handler, handler_cancellation=True, access_log=None)
        )
        self._admin = web.AppRunner(admin.application(), access_log=None)
        self.data_port = 0
        self.admin_port = 0

    async def start(self, listen: tuple[str, int], admin: tuple[str, int]) -> None:
        """Bind both. Raises ``OSError`` where an address is taken."""
        await self._admin.setup()
        await self._data.setup()
        await web.TCPSite(self._admin, *admin).start()
        await web.TCPSite(self._data, *listen, backlog=1024).start()
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


def _port(runner: web.BaseRunner) -> int:
    address = runner.addresses[0]
    return int(address[1])
