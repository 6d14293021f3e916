"""Incidents as signed POSTs to a URL of the operator's. Never in the way of a request.

The body is the incident's JSON; ``X-Poolgate-Signature`` is ``t=SECONDS,v1=HEX``, where HEX is the
HMAC-SHA256, under the shared secret, of ``SECONDS.`` and the body. The time is signed so that a
receiver can refuse what is old.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from datetime import UTC, datetime

import aiohttp
import msgspec

from gateway.edge.incidents import Incident
from gateway.edge.metrics import Metrics
from gateway.edge.tasks import Tasks

log = logging.getLogger(__name__)
WAITING = 1000  # incidents at most; more are dropped, and counted
ATTEMPTS = 6
PATIENCE = 10.0  # seconds for one attempt
LAST_WORDS = 5.0  # seconds at the end for what still waits
USER_AGENT = "poolgate"


class Webhook:
    """A queue and the one task that empties it. ``first_pause`` doubles with each attempt."""

    def __init__(self, url: str, secret: bytes, metrics: Metrics, first_pause: float = 1.0) -> None:
        self._url = url
        self._secret = secret
        self._metrics = metrics
        self._first_pause = first_pause
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(WAITING)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=PATIENCE), cookie_jar=aiohttp.DummyCookieJar()
        )
        self._tasks = Tasks()
        self._tasks.spawn(self._run(), "webhook")

    def put(self, incident: Incident) -> None:
        """Queue an incident; without room it is dropped."""
        try:
            self._waiting.put_nowait(msgspec.json.encode(incident))
        except asyncio.QueueFull:
            self._count("dropped")

    async def close(self) -> None:
        """Give what waits a moment, then stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self._waiting.join()
        await self._tasks.cancel()
        await self._session.close()

    async def _run(self) -> None:
        while True:
            body = await self._waiting.get()
            try:
                self._count("delivered" if await self._deliver(body) else "failed")
            finally:
                self._waiting.task_done()

    async def _deliver(self, body: bytes) -> bool:
        pause = self._first_pause
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            trouble = await self._attempt(body)
            if trouble is None:
                return True
        log.warning("webhook: an incident was not delivered in %d attempts: %s", ATTEMPTS, trouble)
        return False

    async def _attempt(self, body: bytes) -> str | None:
        """What went wrong; None where the receiver took it."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "X-Poolgate-Signature": signature(self._secret, body, datetime.now(UTC)),
        }
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return None if 200 <= answer.status < 300 else f"status {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return type(error).__name__

    def _count(self, result: str) -> None:
        self._metrics.webhook.labels(result).inc()


def signature(secret: bytes, body: bytes, at: datetime) -> str:
    """The header's value for a body sent at a time."""
    seconds = str(int(at.timestamp()))
    mac = hmac.new(secret, seconds.encode() + b"." + body, "sha256").hexdigest()
    return f"t={seconds},v1={mac}"
