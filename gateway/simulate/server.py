"""The simulated engine as a server: one client port in front of both legs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from aiohttp import web

from gateway.simulate.api import anthropic, discovery, native, openai, responses
from gateway.simulate.api.service import SERVICE, Service, flat_error, json_answer
from gateway.simulate.api.swapping import Swapper
from gateway.simulate.driver import Counters, Driver
from gateway.simulate.engine import Engine, EngineRefusal
from gateway.simulate.oracle import Oracle, Truth
from gateway.simulate.settings import SimulateSettings
from gateway.simulate.text import Filler
from gateway.simulate.tokeniser import Tokeniser

MAX_BODY = 256 * 2**20
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ASKED: Mapping[str, Handler] = {
    "/health": discovery.health,
    "/health_generate": discovery.health,
    "/v1/models": discovery.models,
    "/model_info": discovery.model_info,
    "/get_model_info": discovery.model_info,
    "/server_info": discovery.server_info,
    "/get_server_info": discovery.server_info,
    "/metrics": discovery.metrics,
}
DONE_HERE: Mapping[str, Handler] = {
    "/generate": native.generate,
    "/v1/chat/completions": openai.chat_completions,
    "/v1/completions": openai.completions,
    "/v1/embeddings": openai.embeddings,
    "/v1/messages": anthropic.messages,
    "/v1/messages/count_tokens": anthropic.count_tokens,
    "/v1/responses": responses.responses,
    "/tokenize": native.tokenize,
    "/v1/tokenize": native.tokenize,
    "/flush_cache": native.flush_cache,
    "/abort_request": native.abort_request,
}
ANSWERS = frozenset(
    {"/generate", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
)
ERROR_BODIES: Mapping[str, Callable[[EngineRefusal], dict[str, Any]]] = {
    "/generate": native.error_body,
    "/v1/messages": anthropic.error_body,
    "/v1/messages/count_tokens": anthropic.error_body,
    "/v1/responses": responses.error_body,
}


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refusals in the endpoint's own shape."""
    try:
        return await _swapped(request, await handler(request))
    except EngineRefusal as refusal:
        shape = ERROR_BODIES.get(request.path, flat_error)
        return json_answer(shape(refusal), refusal.status)
    except web.HTTPException as error:
        return json_answer({"detail": error.reason}, error.status)


async def _swapped(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Under the ``swap`` fault a whole answer may leave as another's."""
    swapper = request.app[SERVICE].swapper
    if swapper is None or request.path not in ANSWERS or not isinstance(response, web.Response):
        return response
    body = await swapper.exchange((request.path, "whole"), response.body)
    return web.Response(body=body, content_type="application/json")


def create_app(settings: SimulateSettings) -> web.Application:
    """The application; its ``SERVICE`` key holds the engine.

    Raises OSError or ValueError when the tokenizer or the oracle's file cannot be used.
    """
    began = perf_counter()
    tokeniser = Tokeniser(settings.tokenizer, drift=settings.faults.drift, vision=settings.vision)
    filler = Filler(lambda text: tokeniser.encode([text], add_special_tokens=False)[0])
    engine = Engine(settings, filler, tokeniser.special)
    driver = Driver(engine, tokeniser, Oracle(settings.oracle), settings.timing)
    app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors])
    ids = random.Random(f"{settings.seed}:ids")
    loading = perf_counter() - began
    swapper = Swapper() if settings.faults.swap else None
    app[SERVICE] = Service(settings, tokeniser, driver, ids, _wall_clock, loading, swapper)
    app.add_routes([web.get(path, handler) for path, handler in ASKED.items()])
    app.add_routes([web.post(path, handler) for path, handler in DONE_HERE.items()])
    app.on_cleanup.append(_stop)
    return app


def _wall_clock() -> float:
    return datetime.now(UTC).timestamp()


async def _stop(app: web.Application) -> None:
    await app[SERVICE].driver.stop()


@dataclass(frozen=True, slots=True)
class Handle:
    """A running engine, and what only its owner may know."""

    url: str
    service: Service

    @property
    def counters(self) -> Counters:
        """What reached the engine so far."""
        return self.service.driver.counters

    @property
    def truths(self) -> Mapping[str, Truth]:
        """The oracle's records of ended sequences, by owner (the rid, for a single sequence)."""
        return self.service.driver.oracle.records

    @property
    def idle(self) -> bool:
        """Nothing runs and every page is free or the prefix cache's."""
        engine = self.service.driver.engine
        prefill, decode = engine.prefill_memory, engine.decode_memory
        free = prefill.free_pages + engine.cache.held_pages == prefill.page_count
        return not self.service.driver.running and free and decode.free_pages == decode.page_count


@asynccontextmanager
async def running(
    settings: SimulateSettings, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Handle]:
    """Serve until the block ends; ``port`` 0 picks a free one. Raises OSError if it is taken."""
    app = create_app(settings)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound = runner.addresses[0][1]
        yield Handle(f"http://{host}:{bound}", app[SERVICE])
    finally:
        await runner.cleanup()


async def serve(
    settings: SimulateSettings,
    host: str,
    port: int,
    ready: Callable[[Handle], None],
    stop: asyncio.Event,
) -> None:
    """Serve until ``stop`` is set; ``ready`` is told once requests are taken."""
    async with running(settings, host, port) as handle:
        ready(handle)
        await stop.wait()
