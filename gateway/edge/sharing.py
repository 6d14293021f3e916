"""Accepting on a socket that other processes accept on as well."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from socket import socket

from aiohttp import web

from gateway.edge.tasks import Tasks

log = logging.getLogger(__name__)
YIELD = 0.001  # seconds after each connection in which others may take the next
HANDSHAKE = 10.0  # seconds a client has for its part of TLS
EXHAUSTED = 1.0  # seconds without accepting where the system has no more descriptors to give


class SharedSite(web.BaseSite):
    """Takes one connection at a time, and leaves the next to who is free.

    Event loops' own servers take all that wait as soon as they wake: of 200 connections at once
    one process of four took 106, and another none.
    """

    def __init__(
        self,
        runner: web.BaseRunner,
        shared: socket,
        backlog: int,
        tasks: Tasks,
        context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner, backlog=backlog, ssl_context=context)
        self._shared = shared
        self._listed = backlog
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    @property
    def name(self) -> str:
        """Where it listens."""
        return str(self._shared.getsockname())

    async def start(self) -> None:
        """Listen, from now on."""
        await super().start()
        self._shared.setblocking(False)
        self._shared.listen(self._listed)
        self._loop.add_reader(self._shared, self._accept)

    async def stop(self) -> None:
        """Take no more. The socket lives on in the processes that still hold it."""
        self._loop.remove_reader(self._shared)
        self._shared.close()
        await super().stop()

    def _accept(self) -> None:
        try:
            connection, _ = self._shared.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # another process has it, or its client has gone
        except OSError as error:
            log.error("no connection can be accepted: %s", error.strerror)  # noqa: TRY400
            self._pause(EXHAUSTED)
            return
        self._pause(YIELD)
        connection.setblocking(False)
        server = self._runner.server
        if server is not None:
            self._tasks.spawn(self._take(server, connection), "accept")

    async def _take(self, server: web.Server, connection: socket) -> None:
        with contextlib.suppress(OSError):  # a TLS handshake that failed is the client's affair
            await self._loop.connect_accepted_socket(
                server,
                connection,
                ssl=self._ssl_context,
                ssl_handshake_timeout=HANDSHAKE if self._ssl_context else None,
            )

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._shared)
        self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        if self._shared.fileno() >= 0:
            self._loop.add_reader(self._shared, self._accept)
