"""``thinking_engine.py PORT PROMPT_TOKENS SECONDS``: an engine that takes a while, like prefill.

The rig's fake engine answers at once, and then the count in the engine's shadow has no shadow.
"""

from __future__ import annotations

import argparse
import asyncio

from aiohttp import web

from benchmarks.proxy.traffic import CHAT_PATH, engine_routes


def application(prompt_tokens: int, seconds: float) -> web.Application:
    """The rig's engine, but for a pause before each chat's answer."""
    answers = engine_routes(prompt_tokens=prompt_tokens)

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if request.path == CHAT_PATH:
            await asyncio.sleep(seconds)
        if request.path not in answers:
            return web.json_response({}, status=404)
        return web.json_response(answers[request.path])

    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("prompt_tokens", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    app = application(options.prompt_tokens, options.seconds)
    web.run_app(app, host="127.0.0.1", port=options.port, access_log=None, print=lambda _: None)


if __name__ == "__main__":
    main()
