"""A real gateway in front of a simulated engine, on loopback ports of their own."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from fakes.raw_engine import RawEngine
from gateway.app import App
from gateway.settings import NoSecrets, parse
from gateway.simulate import INSTANT, Handle, SimulateSettings, running
from waiting import PATIENCE


@dataclass(frozen=True)
class Running:
    """A gateway, its engine and a client."""

    app: App
    engine: Handle
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.app.data_url

    async def post(self, path, body, **more):
        async with self.http.post(self.url + path, json=body, **more) as answer:
            return answer.status, dict(answer.headers), await answer.read()

    async def admin(self, path):
        async with self.http.get(self.app.admin_url + path) as answer:
            return answer.status, await answer.read()


def settings_for(url, *, backend=None, **more):
    # Off unless asked for: tests count what reaches the engine.
    quiet = {"calibration": {"every": "0s"}}
    entry = {"name": "sim", "url": url, "tokenizer": "poolgate-tiny", **quiet, **(backend or {})}
    return parse(
        {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "backends": [entry], **more},
        NoSecrets(),
    )


@asynccontextmanager
async def gateway_for(url, *, backend=None, **more):
    app = App()
    try:
        await app.start(settings_for(url, backend=backend, **more))
        yield app
    finally:
        await app.stop()


@asynccontextmanager
async def gateway_and_engine(sim=None, *, backend=None, **more):
    sim = sim or SimulateSettings(timing=INSTANT)
    async with (
        running(sim) as engine,
        gateway_for(engine.url, backend=backend, **more) as app,
        aiohttp.ClientSession() as http,
    ):
        yield Running(app, engine, http)


@pytest.fixture
async def live():
    async with gateway_and_engine() as running_gateway:
        yield running_gateway


@pytest.fixture
async def engine():
    """A raw engine that states SGLang's limits; its script may be replaced."""
    async with RawEngine().running() as raw:
        yield raw


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


async def begin(app, body, path="/v1/chat/completions"):
    """Send a request on a connection of its own and read nothing yet: its reader and writer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", app.servers.data_port)
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    return reader, writer


async def raw_call(app, body, path="/v1/chat/completions"):
    """The bytes a client sees, to the end of its connection."""
    reader, writer = await begin(app, body, path)
    seen = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    return seen
