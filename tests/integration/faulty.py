"""Engines that give wrong answers, and gateways over several of them."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from hashlib import sha256

import aiohttp

from fakes.raw_engine import CHAT, RawEngine, answer
from gateway.app import App
from gateway.edge.access_log import AccessLog
from gateway.settings import NoSecrets, parse

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
LONG = {**BODY, "messages": [{"role": "user", "content": "word " * 600}]}
OTHER = "req_" + "0" * 32  # the id of some other request


@asynccontextmanager
async def gateway_of(*engines, log=None, each=None, **more):
    """One backend an engine, named a, b, c...; ``each``: settings of one of them by its name."""
    app = App(access_log=AccessLog(log) if log else None)
    backends = [
        {"name": name, "url": engine.url, "calibration": {"every": "0s"}}
        | {"tokenizer": "poolgate-tiny"}
        | (each or {}).get(name, {})
        for name, engine in zip("abcd", engines, strict=False)
    ]
    written = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "backends": backends, **more}
    try:
        await app.start(parse(written, NoSecrets()))
        yield app
    finally:
        await app.stop()


@asynccontextmanager
async def two_engines():
    async with (
        RawEngine(limit=9000, context=9000).running() as one,
        RawEngine(limit=9000, context=9000).running() as other,
    ):
        yield one, other


async def admin(app, path, method="GET"):
    async with aiohttp.ClientSession() as http:
        async with http.request(method, app.admin_url + path) as reply:
            return reply.status, await reply.json()


def answers_with(value):
    async def script(request, wire):
        wire.write(answer(json.dumps(value).encode()))

    return script


SWAPPED = answers_with({**CHAT, "id": OTHER})
EMPTY = answers_with({**CHAT, "choices": []})
QUARANTINE = {"binding": {"action": "quarantine"}}


async def standing(app, name):
    _, status = await admin(app, "/status")
    return next(one["standing"] for one in status["backends"] if one["name"] == name)


KEYS = {
    "tenants": [{"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in "ab"]
}
