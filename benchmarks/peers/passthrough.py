"""The least an aiohttp proxy can do: read the body, send it on, return the answer. The baseline.

A stream is passed on piece by piece, as it is read.

``passthrough.py LISTEN_PORT UPSTREAM_URL [--uvloop]``; aiohttp's defaults but for two
limits: of a body's size, and of connections to the upstream.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Mapping

import aiohttp
from aiohttp import web

HOP_BY_HOP = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "te"}
SESSION = web.AppKey("session", aiohttp.ClientSession)
UPSTREAM = web.AppKey("upstream", str)


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


async def relay(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    url = request.app[UPSTREAM] + request.path_qs
    session = request.app[SESSION]
    headers = end_to_end(request.headers)
    async with session.request(request.method, url, data=body, headers=headers) as answer:
        kept = end_to_end(answer.headers)
        if answer.content_type == "text/event-stream":
            return await stream(request, answer, kept)
        return web.Response(status=answer.status, body=await answer.read(), headers=kept)


async def stream(
    request: web.Request, answer: aiohttp.ClientResponse, headers: Mapping[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    async for piece in answer.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response


async def one_session(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as app[SESSION]:
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("upstream")
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args()
    app = web.Application(client_max_size=2**30)
    app[UPSTREAM] = options.upstream
    app.cleanup_ctx.append(one_session)
    app.router.add_route("*", "/{path:.*}", relay)
    loop = asyncio.new_event_loop()
    if options.uvloop:
        import uvloop  # noqa: PLC0415 - only this mode needs it

        loop = uvloop.new_event_loop()
    web.run_app(
        app, host="127.0.0.1", port=options.port, loop=loop, access_log=None, print=lambda _: None
    )


if __name__ == "__main__":
    main()
