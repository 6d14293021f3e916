"""Asking workers: small bounded requests of our own, apart from tenants' traffic."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec
from yarl import URL

from gateway.engines.base import Answer, Answers, Probe

MAX_ANSWER_BYTES = 8 * 1024 * 1024


class Prober:
    """Puts probes to a worker and returns what it said, whatever that is.

    ``deadline`` seconds a probe. Never raises for what a worker does: no answer is an ``Answer``
    with status 0 and the reason as its body.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        api_key: str | None,
        deadline: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._session = session
        self._tls = tls
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._deadline = deadline

    async def ask(self, url: str, probes: Iterable[Probe]) -> Answers:
        """Every probe at once."""
        wanted = tuple(dict.fromkeys(probes))
        answers = await asyncio.gather(*(self._one(url, probe) for probe in wanted))
        return dict(zip(wanted, answers, strict=True))

    async def _one(self, url: str, probe: Probe) -> Answer:
        data = None if probe.body is None else msgspec.json.encode(probe.body)
        headers = dict(self._headers)
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with (
                asyncio.timeout(self._deadline),
                self._session.request(
                    probe.method,
                    URL(join(url, probe.path), encoded=True),
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._tls or True,
                ) as response,
            ):
                body = await _bounded(response)
                if body is None:
                    return Answer(0, b"its answer is larger than 8 MiB")
                return Answer(response.status, body)
        except TimeoutError:
            return Answer(0, f"no answer within {self._deadline:g}s".encode())
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(0, type(error).__name__.encode())


def join(base: str, path: str) -> str:
    """``path`` (which begins with a slash) below the base URL's own path."""
    parts = urlsplit(base)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + path, "", ""))


async def _bounded(response: aiohttp.ClientResponse) -> bytes | None:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            response.close()
            return None
    return bytes(body)
