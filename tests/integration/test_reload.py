"""A configuration that was replaced is closed once nothing runs under it, whatever runs since."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from contextlib import asynccontextmanager

from fakes.raw_engine import CHAT, answer
from integration.conftest import gateway_for, settings_for
from waiting import until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def steady_calls(http, app, at_once=3):
    """Callers that never leave a moment without a request."""
    over = asyncio.Event()

    async def call(delay):
        await asyncio.sleep(delay)
        while not over.is_set():
            async with http.post(app.data_url + "/v1/chat/completions", json=BODY) as reply:
                assert reply.status == 200
                await reply.read()

    async with asyncio.TaskGroup() as callers:
        for place in range(at_once):
            callers.create_task(call(place * 0.05))
        yield
        over.set()


async def test_an_old_configuration_is_closed_under_steady_traffic(engine, http):
    async def slow(_request, wire):
        await asyncio.sleep(0.15)
        wire.write(answer(json.dumps(CHAT).encode()))

    engine.script = slow
    async with gateway_for(engine.url) as app, steady_calls(http, app):
        await asyncio.sleep(0.3)
        old = app.generation
        assert old.busy
        await app.reload(settings_for(engine.url, drain="1s"))
        await until(lambda: old.probing.closed)
        assert app.generation.busy
        assert not old.busy
    assert not app.generation.busy


async def test_an_old_configuration_leaves_memory(engine, http):
    """By our own doing: in a worker a full collection hardly ever comes by itself."""
    async with gateway_for(engine.url) as app:
        gc.disable()
        try:
            left = []
            for _ in range(2):
                await http.post(app.data_url + "/v1/chat/completions", json=BODY)
                left.append(weakref.ref(app.generation.runtime.backends[0]))
                await app.reload(settings_for(engine.url))
                await until(lambda: left[-1]() is None)
        finally:
            gc.enable()
