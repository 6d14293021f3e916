"""Incidents: what they say, how they are found, where they go."""

from __future__ import annotations

import asyncio
import hmac
import json
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from fakes.raw_engine import RawEngine
from gateway.edge import webhook
from integration.conftest import gateway_for
from integration.faulty import (
    BODY,
    EMPTY,
    KEYS,
    SWAPPED,
    admin,
    gateway_of,
    two_engines,
)
from integration.test_checks import raw_post, sample
from waiting import own_clock, until

# --- incidents ---------------------------------------------------------------------------------


async def test_incidents_are_chosen_by_kind_backend_tenant_and_time():
    async with RawEngine().running() as engine, gateway_for(engine.url, **KEYS) as app:
        async with aiohttp.ClientSession() as http:
            for key, script in (("a", SWAPPED), ("b", EMPTY), ("b", SWAPPED)):
                engine.script = script
                await http.post(
                    app.data_url + "/v1/chat/completions", json=BODY, headers={"x-api-key": key}
                )
        _, every = await admin(app, "/incidents")
        assert [one["kind"] for one in every] == ["binding", "completeness", "binding"]
        tenants = [one["tenant"] for one in every]
        assert tenants[0] == tenants[1] != tenants[2]
        assert {"a", "b"}.isdisjoint(tenants)  # keyed hashes
        for query, places in (
            ("kind=binding", [0, 2]),
            ("tenant=b", [0, 1]),
            (f"tenant={tenants[2]}", [2]),
            ("tenant=b&kind=binding", [0]),
            ("backend=other", []),
            ("limit=1", [0]),
            (f"since={every[1]['time'].replace('+', '%2B')}", [0, 1]),
        ):
            assert (await admin(app, f"/incidents?{query}"))[1] == [every[n] for n in places]
        for bad in ("kinds=binding", "limit=x", "limit=-1"):
            assert (await admin(app, f"/incidents?{bad}"))[0] == 400


async def test_an_incident_says_which_engine_it_was_and_nothing_of_the_text():
    async with RawEngine().running() as engine, gateway_for(engine.url) as app:
        engine.script = SWAPPED
        await raw_post(app, BODY)
        [incident] = app.recorder.incidents
        assert incident["engine"]["versions"] == ["0.5.23"]
        assert incident["engine"]["pool_tokens"] == 1024
        assert len(incident["engine"]["digest"]) == 16
        assert "hello" not in json.dumps(incident)


async def test_a_tenant_that_opens_incidents_at_will_is_believed_no_more():
    async with two_engines() as (one, other):
        async with gateway_of(one, integrity={"binding": {"action": "block"}}) as app:
            one.script = SWAPPED
            for _ in range(40):
                assert (await raw_post(app, BODY))[0] == 502  # withheld all the same
            assert 30 <= len(app.recorder.incidents) <= 31
            suppressed = sample(app, "poolgate_incidents_suppressed_total", kind="binding")
            assert suppressed + len(app.recorder.incidents) == 40
        assert other.received == []


# --- webhook -----------------------------------------------------------------------------------


@asynccontextmanager
async def receiver(statuses=()):
    """A real HTTP server that answers with ``statuses`` first, then 204."""
    got, codes = [], list(statuses)

    async def hook(request):
        got.append((request.headers, await request.read()))
        return web.Response(status=codes.pop(0) if codes else 204)

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook", got
    finally:
        await runner.cleanup()


SECRET = "a secret of sixteen"


async def test_incidents_are_sent_signed_and_tried_again():
    async with receiver([500]) as (url, got), RawEngine().running() as engine:
        integrity = {"webhook": {"url": url, "secret": SECRET}}
        async with gateway_for(engine.url, integrity=integrity) as app:
            engine.script = SWAPPED
            await raw_post(app, BODY)
            await until(
                lambda: sample(app, "poolgate_webhook_deliveries_total", result="delivered") == 1
            )
            assert len(got) == 2  # the second time it was taken
            [incident] = app.recorder.incidents
            headers, body = got[1]
            assert json.loads(body) == incident
            stamp, mac = (part.split("=")[1] for part in headers["X-Poolgate-Signature"].split(","))
            expected = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, "sha256").hexdigest()
            assert hmac.compare_digest(mac, expected)


async def test_a_webhook_that_hangs_holds_up_no_request(monkeypatch):
    monkeypatch.setattr(webhook, "LAST_WORDS", 0.1)

    async def hang(reader, writer):
        await reader.read()  # to the end: the other side must hang up
        writer.close()

    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}/hook"
    integrity = {"webhook": {"url": url, "secret": SECRET}}
    try:
        async with RawEngine().running() as engine:
            async with gateway_for(engine.url, integrity=integrity) as app:
                engine.script = SWAPPED
                async with own_clock() as clock:
                    for _ in range(5):
                        assert (await raw_post(app, BODY))[0] == 502
                    assert clock() < 2.0
    finally:
        hanging.close()
