"""Limits from the live engine, as it is now (cases 55-57, 59, 60, 76)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from fakes.raw_engine import RawEngine, answer, head
from gateway.edge.discovery import LEAST_PAUSE
from integration.conftest import gateway_for
from waiting import PATIENCE, until

FAST = {"limit": {"refresh": "20ms", "stale_after": "2s"}}


async def ask(http, app, tokens):
    """Send a prompt of so many token ids; status and error code."""
    body = {"model": "m", "prompt": [7] * tokens}
    async with http.post(app.data_url + "/v1/completions", json=body) as reply:
        text = await reply.text()
        code = json.loads(text)["error"]["code"] if reply.status >= 400 else None
        return reply.status, code


def limit_of(app):
    return app.generation.runtime.backends[0].capacity()


async def ready(http, app):
    async with http.get(app.admin_url + "/readyz") as reply:
        return reply.status, (await reply.json())["waiting_for"]


async def test_the_boundary_is_sglangs_own(engine, http):  # case 56
    engine.limit, engine.context = 59_862, 163_840
    async with gateway_for(engine.url) as app:
        assert (await ask(http, app, 59_861))[0] == 200
        assert await ask(http, app, 59_862) == (400, "context_length_exceeded")
    assert [len(request.json["prompt"]) for request in engine.received] == [59_861]


async def test_an_engine_that_truncates_is_refused(engine, http):  # case 56
    engine.info = {"allow_auto_truncate": True}
    async with gateway_for(engine.url) as app:
        assert await ask(http, app, 5) == (503, "engine_unsafe")
        status, waiting = await ready(http, app)
        assert status == 503
        assert "allow_auto_truncate" in waiting[0]["reason"]
    allowed = {"limit": {"allow_truncating_engine": True}}
    async with gateway_for(engine.url, backend=allowed) as app:
        assert (await ask(http, app, 5))[0] == 200


async def test_limits_follow_restarts(engine, http):  # case 57
    async with gateway_for(engine.url, backend=FAST) as app:
        for limit in (8192, 4096, 16_384):
            engine.limit, engine.context, engine.generation = limit, 32_768, limit
            await until(lambda: limit_of(app).tokens == limit - 1)  # noqa: B023
            assert (await ask(http, app, limit))[0] == 400
            assert (await ask(http, app, limit - 1))[0] == 200


async def test_a_limit_stated_in_a_refusal_counts_from_then_on(engine, http):  # cases 55, 57
    async def script(request, wire):
        message = (
            "Input length (2000 tokens) exceeds the maximum allowed length (1500 tokens). Use a"
            " shorter input or enable --allow-auto-truncate."
        )
        body = {"object": "error", "message": message, "type": "BadRequestError", "code": 400}
        wire.write(answer(json.dumps(body).encode(), status="400 Bad Request"))

    engine.limit, engine.context, engine.script = 4096, 8192, script
    async with gateway_for(engine.url) as app:
        status, _ = await send_raw(http, app, 2000)
        assert status == 400
        assert len(engine.received) == 1
        assert await ask(http, app, 1900) == (400, "context_length_exceeded")
        assert len(engine.received) == 1
        async with http.get(app.admin_url + "/status") as reply:
            status = await reply.json()
        assert "publishes 4095" in status["backends"][0]["contradictions"][0]


async def send_raw(http, app, tokens):
    body = {"model": "m", "prompt": [7] * tokens}
    async with http.post(app.data_url + "/v1/completions", json=body) as reply:
        return reply.status, await reply.text()


async def test_a_slow_probe_forgets_nothing_until_stale(engine, http):  # case 60
    slow = {"limit": {"refresh": "20ms", "stale_after": "3s"}}
    async with gateway_for(engine.url, backend=slow) as app:
        engine.answer_probes = False
        await asyncio.sleep(0.1)
        assert (await ask(http, app, 5))[0] == 200
        await asyncio.sleep(3.2)
        assert await ask(http, app, 5) == (503, "limit_unknown")


async def test_unknown_limits_are_let_through_only_where_configured(http):
    async with RawEngine().running() as engine:
        engine.answer_probes = False
        backend = {"engine": "sglang", "limit": {"when_unknown": "allow"}}
        async with gateway_for(engine.url, backend=backend) as app:
            assert (await ask(http, app, 5))[0] == 200
            assert (await ready(http, app))[0] == 200


GARBAGE = [
    head("501 Not Implemented", length=0),
    answer(b"not yet implemented", kind="text/plain"),
    answer(b"<html><body>hello</body></html>", kind="text/html"),
    answer(b"{}"),
    answer(b"[]"),
    answer(b"null"),
    head("401 Unauthorized", length=0),
    head("307 Temporary Redirect", length=0, more=["Location: /x"]),
    answer(b'{"max_req_input_len": "1018", "max_total_num_tokens": true}'),
    answer(b'{"max_req_input_len": -5, "max_total_num_tokens": -5}'),
    answer(b'{"data": "' + b"x" * 10_000_000 + b'"}'),
    b"nonsense\r\n\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("name", ["auto", "sglang"])
async def test_garbage_is_an_unknown_limit_and_never_a_crash(engine, http, garbage, name):  # 59
    async def probe(request, wire):
        engine.probes += 1
        wire.write(garbage)

    engine.probe = probe
    async with gateway_for(engine.url, backend={"engine": name}) as app:
        assert await ask(http, app, 5) == (503, "limit_unknown")
        configured = {"engine": name, "limit": {"max_prompt_tokens": 50}}
    async with gateway_for(engine.url, backend=configured) as app:
        assert (await ask(http, app, 50))[0] == 200
        assert (await ask(http, app, 51))[0] == 400


async def test_the_gateway_starts_without_its_engine_and_finds_it_later(http):  # case 76
    engine = RawEngine()
    async with engine.running():
        url = engine.url
    async with gateway_for(url, backend=FAST) as app:
        assert (await ready(http, app))[0] == 503
        assert await ask(http, app, 5) == (503, "limit_unknown")
        async with http.get(app.admin_url + "/healthz") as reply:
            assert reply.status == 200
        port = int(url.rpartition(":")[2])
        late = RawEngine()
        late._server = await asyncio.get_running_loop().create_server(
            lambda: _connection(late), "127.0.0.1", port
        )
        try:
            await until(lambda: hasattr(limit_of(app), "tokens"))
            assert (await ask(http, app, 5))[0] == 200
        finally:
            late._server.close()
            for connection in late.connections:
                connection.end()


def _connection(engine):
    from fakes.raw_engine import _Connection

    return _Connection(engine)


async def test_there_is_one_prober_and_it_generates_nothing(engine, http):  # cases 60, 76
    async with gateway_for(engine.url, backend={"limit": {"refresh": "100ms"}}):
        await asyncio.sleep(0.15)
        before = engine.probes
        await asyncio.sleep(0.5)
        assert 0 < engine.probes - before < 60
    assert engine.received == []


async def test_requests_that_fail_do_not_make_rounds_follow_each_other(engine, http):
    async with gateway_for(engine.url, backend={"limit": {"refresh": "1h"}}) as app:
        discovery = app.generation.runtime.backends[0].discovery
        rounds = 0
        real = discovery.round

        async def counted():
            nonlocal rounds
            rounds += 1
            await real()

        discovery.round = counted
        async with asyncio.timeout(PATIENCE):
            while rounds < 2:  # asked for all the time
                discovery.ask_soon()
                await asyncio.sleep(0.001)
            first = asyncio.get_running_loop().time()
            while rounds < 4:
                discovery.ask_soon()
                await asyncio.sleep(0.001)
        assert asyncio.get_running_loop().time() - first >= 2 * LEAST_PAUSE


@asynccontextmanager
async def router_with(workers):
    """A sgl-model-gateway that tells of workers (a mutable list of URL and role)."""

    async def listing(request):
        return web.json_response(
            {
                "workers": [
                    {"id": url, "url": url, "worker_type": role, "is_healthy": True}
                    for url, role in workers
                ],
                "total": len(workers),
            }
        )

    app = web.Application()
    app.router.add_get("/workers", listing)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_behind_a_router_the_smallest_worker_rules_and_changes_are_followed(http):
    async with RawEngine(4096, 9999).running() as prefill, RawEngine(2048, 9999).running() as small:
        workers = [(prefill.url + "@0", "prefill"), (small.url, "decode")]
        async with router_with(workers) as url, gateway_for(url, backend=FAST) as app:
            assert limit_of(app).tokens == 2047
            assert limit_of(app).role == "decode"
            small.limit = 1024  # a role switch or restart on the worker
            await until(lambda: limit_of(app).tokens == 1023)
            workers.pop()
            await until(lambda: limit_of(app).tokens == 4095)


async def test_a_router_that_stops_listing_is_not_taken_for_one_of_its_workers(http, monkeypatch):
    from gateway.edge import discovery

    monkeypatch.setattr(discovery, "ROUTER_ROUNDS", 10)
    async with RawEngine(4096, 9999).running() as front, RawEngine(2048, 9999).running() as small:
        listed = {
            "workers": [
                {"url": front.url, "worker_type": "prefill"},
                {"url": small.url, "worker_type": "decode"},
            ],
            "total": 2,
        }
        tells = True
        as_engine = front.probe

        async def probe(request, wire):
            if request.line.startswith("GET /workers ") and tells:
                wire.write(answer(json.dumps(listed).encode()))
            else:
                await as_engine(request, wire)  # proxied to its first prefill worker

        front.probe = probe
        async with gateway_for(front.url, backend=FAST) as app:
            assert limit_of(app).tokens == 2047
            tells = False
            await asyncio.sleep(0.15)
            assert limit_of(app).tokens == 2047
            await until(lambda: limit_of(app).tokens == 4095)  # it really is an engine now


async def test_workers_a_router_does_not_tell_are_named_by_the_operator(http):
    async with RawEngine(4096, 9999).running() as front, RawEngine(512, 9999).running() as hidden:
        async with gateway_for(front.url, backend={"workers": [hidden.url]}) as app:
            assert limit_of(app).tokens == 511
            assert (await ask(http, app, 512))[0] == 400
            assert (await ask(http, app, 511))[0] == 200
