"""The fair queue in front of a backend: turns, places, ends, and what a refusal leaves behind."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import time
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import aiohttp
import pytest

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, head
from gateway.core.tenants import Tenant
from gateway.simulate import INSTANT, SimulateSettings, Timing
from integration.conftest import Running, begin, gateway_and_engine, gateway_for, settings_for
from waiting import PATIENCE, until

PATH = "/v1/completions"
LARGE, SMALL = 100_000, 100
ROOMY = SimulateSettings(timing=INSTANT, context=131_072, prefill_pool=131_072, decode_pool=262_144)
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {"kind": "text/event-stream", "chunked": True}


def tenants(**policies):
    """Tenants of these policies, whose keys are their names."""
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in policies}
    return {
        "tenants": [
            {"id": name, "key_sha256": [digest], "policy": name} for name, digest in digests.items()
        ],
        "policies": policies,
    }


def only(app):
    """The sole backend."""
    [backend] = app.handler.runtime.backends
    return backend


@asynccontextmanager
async def held_up(app):
    """The backend's whole capacity, taken by the test while the block runs."""
    queue = only(app).queue
    nobody = SimpleNamespace(id="the test", policy=SimpleNamespace(weight=1.0))
    tickets = [queue.join(nobody, 0) for _ in range(queue.fair.bounds.requests)]
    try:
        yield queue
    finally:
        for ticket in tickets:
            queue.leave(ticket)


def is_idle(app):
    backend = only(app)
    fair = backend.queue.fair
    return not (
        backend.waiting
        or backend.in_flight
        or fair.waiting
        or fair.running
        or fair.running_tokens
        or app.handler.in_flight
    )


async def complete(live, tenant, tokens, **more):
    body = {"model": "m", "prompt": [1500] * tokens, "max_tokens": 1, **more}
    data = io.BytesIO(json.dumps(body).encode())  # the client warns of large plain bodies
    headers = {"authorization": f"Bearer {tenant}", "content-type": "application/json"}
    async with live.http.post(live.url + PATH, data=data, headers=headers) as reply:
        return reply.status, dict(reply.headers), await reply.read()


async def remaining(app, tenant):
    """What is left of each of a tenant's quotas, by name, once all that ended is settled."""
    leases = app.handler.runtime.limiting.leases
    await until(lambda: not leases.busy)
    standing = await leases.standing(Tenant(tenant, app.settings.policies[tenant]))
    return {charge.key.name: decision.remaining for charge, decision in standing.items()}


def sample(app, name, **labels):
    return app.metrics.registry.get_sample_value(name, {"backend": "sim", **labels})


# --- turns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [{"concurrent": 1}, {"concurrent": 4, "prompt_tokens": 110_000}])
async def test_a_flood_of_long_prompts_leaves_another_tenant_its_share(room):
    backend = {"queue": {**room, "max_wait": "1m"}}
    async with gateway_and_engine(ROOMY, backend=backend, **tenants(a={}, b={})) as live:
        async with held_up(live.app) as queue:
            flood = [asyncio.create_task(complete(live, "a", LARGE)) for _ in range(10)]
            await until(lambda: queue.fair.waiting == 10)
            short = [asyncio.create_task(complete(live, "b", SMALL)) for _ in range(40)]
            await until(lambda: queue.fair.waiting == 50)
        answers = await asyncio.gather(*flood, *short)
        assert {status for status, *_ in answers} == {200}
        order = list(live.engine.counters.prompt_lengths)
        # All of b's cost less than one of a's: at most the first of a's comes before them.
        assert order[:41].count(SMALL) == 40
        assert order[41:] == [LARGE] * 9
        assert is_idle(live.app)


async def test_shares_follow_weights():
    backend = {"queue": {"concurrent": 1, "max_wait": "1m"}}
    three_to_one = tenants(heavy={"weight": 3.0}, light={"weight": 1.0})
    async with gateway_and_engine(ROOMY, backend=backend, **three_to_one) as live:
        async with held_up(live.app) as queue:
            asked = [
                asyncio.create_task(complete(live, tenant, tokens))
                for _ in range(40)
                for tenant, tokens in (("heavy", 1000), ("light", 1001))
            ]
            await until(lambda: queue.fair.waiting == 80)
        await asyncio.gather(*asked)
        first = list(live.engine.counters.prompt_lengths)[:48]
        assert 35 <= first.count(1000) <= 37


async def test_no_more_than_the_room_is_in_flight(engine, http):
    async def script(request, wire):
        most.append(sum(not each.done for each in engine.received))
        await asyncio.sleep(0.01)
        request.done = True
        wire.write(answer(json.dumps(CHAT).encode()))

    class Counting(list):
        def append(self, received):
            received.done = False
            super().append(received)

    most = []
    engine.received, engine.script = Counting(), script
    async with gateway_for(engine.url, backend={"queue": {"concurrent": 3}}) as app:
        url = app.data_url + "/v1/chat/completions"
        replies = await asyncio.gather(*(http.post(url, json=BODY) for _ in range(30)))
        assert {reply.status for reply in replies} == {200}
        assert max(most) == 3
        await until(lambda: is_idle(app))


# --- ends of a wait ---------------------------------------------------------------------------


async def test_a_wait_that_is_too_long_is_a_429_with_retry_after():
    backend = {"queue": {"concurrent": 1, "max_wait": "100ms"}}
    async with gateway_and_engine(backend=backend) as live:
        async with held_up(live.app):
            status, headers, body = await live.post("/v1/chat/completions", BODY)
            assert status == 429
            assert int(headers["Retry-After"]) >= 1
            error = json.loads(body)["error"]
            assert error["code"] == "backend_busy"
            assert "queue" in error["message"]
            status, headers, body = await live.post("/v1/messages", {**BODY, "max_tokens": 5})
            assert json.loads(body)["error"]["type"] == "rate_limit_error"
        assert live.engine.counters.requests == 0
        assert sample(live.app, "poolgate_queue_refusals_total", reason="max_wait") == 2
        assert is_idle(live.app)


async def test_a_full_queue_is_a_429_at_once_and_another_tenant_gets_a_place():
    backend = {"queue": {"concurrent": 1, "max_waiting": 3, "max_wait": "1m"}}
    async with gateway_and_engine(ROOMY, backend=backend, **tenants(a={}, b={})) as live:
        async with held_up(live.app) as queue:
            flood = [asyncio.create_task(complete(live, "a", 10)) for _ in range(3)]
            await until(lambda: queue.fair.waiting == 3)
            status, headers, _ = await complete(live, "a", 10)
            assert (status, int(headers["Retry-After"])) == (429, 60)
            asked = asyncio.create_task(complete(live, "b", 20))
            done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result()[0] for task in done] == [429]
            assert not asked.done()
        statuses = sorted(status for status, *_ in await asyncio.gather(*flood, asked))
        assert statuses == [200, 200, 200, 429]
        assert asked.result()[0] == 200
        assert sample(live.app, "poolgate_queue_refusals_total", reason="max_waiting") == 2


async def test_a_client_that_leaves_while_waiting_frees_its_place():
    backend = {"queue": {"concurrent": 1, "max_waiting": 1, "max_wait": "1m"}}
    async with gateway_and_engine(backend=backend) as live:
        async with held_up(live.app) as queue:
            _, leaving = await begin(live.app, BODY)
            await until(lambda: queue.fair.waiting == 1)
            leaving.transport.abort()
            await until(lambda: queue.fair.waiting == 0)
            assert only(live.app).waiting == 0
            asked = asyncio.create_task(live.post("/v1/chat/completions", BODY))
            await until(lambda: queue.fair.waiting == 1)
        assert (await asked)[0] == 200
        assert live.engine.counters.requests == 1
        assert is_idle(live.app)


async def test_a_refusal_by_the_queue_charges_nothing():
    quotas = {
        "requests_per_minute": 50,
        "tokens_per_minute": 50_000,
        "tokens_per_day": 5_000_000,
        "concurrent": 1,
    }
    backend = {"queue": {"concurrent": 1, "max_wait": "50ms"}}
    async with gateway_and_engine(ROOMY, backend=backend, **tenants(t=quotas)) as live:
        before = await remaining(live.app, "t")
        async with held_up(live.app):
            for _ in range(3):
                assert (await complete(live, "t", 1000))[0] == 429
            assert await remaining(live.app, "t") == before
        assert before["concurrent requests"] == 1
        assert (await complete(live, "t", 1000))[0] == 200
        assert (await remaining(live.app, "t"))["requests per minute"] < before[
            "requests per minute"
        ]


@pytest.mark.parametrize("reload", [False, True])
async def test_the_limit_may_fall_while_a_prompt_waits(engine, reload):
    """Nothing that was admitted under the old limit reaches the engine under the new one."""
    backend = {"queue": {"concurrent": 1, "max_wait": "1m"}, "limit": {"refresh": "100ms"}}
    async with gateway_for(engine.url, backend=backend) as app, aiohttp.ClientSession() as http:
        fits = Running(app, None, http)
        async with held_up(app) as queue:
            ids = asyncio.create_task(complete(fits, "x", 900))
            words = {**BODY, "messages": [{"role": "user", "content": "word " * 150}]}
            text = asyncio.create_task(fits.post("/v1/chat/completions", words))
            await until(lambda: queue.fair.waiting == 2)
            admitted_to = only(app)
            if reload:
                await app.reload(settings_for(engine.url, backend=backend, drain="1s"))
            engine.limit = 100
            await until(lambda: admitted_to.capacity().tokens < 900)
        for status, headers, body in await asyncio.gather(ids, text):
            assert status == 400
            assert b"context_length_exceeded" in body
            assert headers["x-poolgate-limit"] == str(admitted_to.capacity().tokens)
        assert not engine.received
        assert is_idle(app)
        await until(lambda: not len(app._tasks))  # an old configuration is closed


async def test_a_dead_engine_holds_nobody_up(engine, http):
    async def script(request, wire):
        wire.abort()

    engine.script = script
    async with gateway_for(engine.url, backend={"queue": {"concurrent": 1}}) as app:
        url = app.data_url + "/v1/chat/completions"
        replies = await asyncio.gather(*(http.post(url, json=BODY) for _ in range(10)))
        assert {reply.status for reply in replies} == {502}
        await until(lambda: is_idle(app))


# --- when a place is given back ---------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("begun", [True, False])
async def test_an_answer_that_is_read_out_keeps_its_place(engine, stream, begun):
    """Under ``on_disconnect: drain`` the engine is busy after the client has gone."""
    go_on = asyncio.Event()

    async def script(request, wire):
        if begun:
            wire.write(head(**STREAM) + chunk(delta("a")))
        await go_on.wait()
        wire.write(b"" if begun else head(**STREAM) + chunk(delta("a")))
        wire.write(chunk(delta("b", "stop")) + chunk(b"data: [DONE]\n\n") + chunk(b""))

    engine.script = script
    backend = {"on_disconnect": "drain", "queue": {"concurrent": 1, "max_wait": "1m"}}
    async with gateway_for(engine.url, backend=backend) as app:
        fair = only(app).queue.fair
        reader, leaving = await begin(app, {**BODY, "stream": stream})
        await until(lambda: engine.received)
        if begun and stream:
            await reader.readuntil(b"\n\n")
        leaving.transport.abort()
        await until(lambda: not app.handler.in_flight)
        assert fair.running == 1
        _, staying = await begin(app, BODY)
        await until(lambda: fair.waiting == 1)
        assert len(engine.received) == 1
        go_on.set()
        await until(lambda: len(engine.received) == 2)
        await until(lambda: is_idle(app))
        staying.close()


@pytest.mark.parametrize("on_disconnect", ["cancel", "drain"])
async def test_a_storm_with_departures_leaves_nothing_behind(on_disconnect):
    rng = random.Random(7)
    timing = Timing(base=0.002, prefill_tokens_per_second=2e6, inter_token=0.0005, spread=0.3)
    sim = SimulateSettings(timing=timing, context=16_384, prefill_pool=16_384)
    queue = {"concurrent": 8, "prompt_tokens": 5000, "max_waiting": 60, "max_wait": "300ms"}
    backend = {"on_disconnect": on_disconnect, "queue": queue}
    quotas = {"concurrent": 400, "tokens_per_day": 10**9}
    open_tenant = {"tenants": [{"id": "t", "policy": "t"}], "policies": {"t": quotas}}
    async with gateway_and_engine(sim, backend=backend, **open_tenant) as live:

        async def one():
            await asyncio.sleep(rng.random() * 2)
            body = {
                "model": "m",
                "prompt": [1500] * rng.choice([1, 50, 800, 6000]),
                "max_tokens": rng.randint(1, 20),
                "stream": rng.random() < 0.5,
            }
            reader, writer = await begin(live.app, body, PATH)
            if rng.random() < 0.4:
                await asyncio.sleep(rng.random() * 0.3)
                writer.transport.abort()
                return 0
            seen = await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
            return int(seen.split(b" ", 2)[1])

        statuses = await asyncio.gather(*(one() for _ in range(500)))
        assert {0, 200, 429} == set(statuses)
        await until(lambda: is_idle(live.app) and live.engine.idle)
        assert (await remaining(live.app, "t"))["concurrent requests"] == 400
        assert (await complete(live, "t", 6000))[0] == 200


# --- what operators see -----------------------------------------------------------------------


async def test_the_wait_is_shown_and_is_neither_overhead_nor_the_engines():
    backend = {"queue": {"concurrent": 1, "prompt_tokens": 100, "max_wait": "1m"}}
    async with gateway_and_engine(ROOMY, backend=backend) as live:
        began = time.monotonic()
        async with held_up(live.app) as queue:
            asked = asyncio.create_task(complete(live, "t", 30, stream=True))
            await until(lambda: queue.fair.waiting == 1)
            status = json.loads((await live.admin("/status"))[1])["backends"][0]
            assert status["queue"] == {"waiting": 1, "in_flight": 1, "prompt_tokens_in_flight": 0}
            assert status["in_flight"] == 0
            assert b'poolgate_queue_waiting{backend="sim"} 1.0' in (await live.admin("/metrics"))[1]
            await asyncio.sleep(0.5)
        assert (await asked)[0] == 200
        await until(lambda: is_idle(live.app))
        await asyncio.sleep(0.05)  # the record comes after the answer
        seconds = time.monotonic() - began
        waited = sample(live.app, "poolgate_queue_wait_seconds_sum")
        assert waited > 0.5
        overhead = live.app.metrics.registry.get_sample_value("poolgate_overhead_seconds_sum")
        assert overhead > 0
        of_engine = {
            "gen_ai_operation_name": "text_completion",
            "gen_ai_provider_name": "sglang",
            "prompt_length": "1k",
        }
        ttft = sample(live.app, "gen_ai_server_time_to_first_token_seconds_sum", **of_engine)
        assert ttft > 0
        assert waited + overhead + ttft < seconds  # what is in one is in no other


async def test_without_a_queue_nothing_is_shown_of_one(live):
    assert (await live.post("/v1/chat/completions", BODY))[0] == 200
    await asyncio.sleep(0.05)
    assert json.loads((await live.admin("/status"))[1])["backends"][0]["queue"] is None
    scrape = (await live.admin("/metrics"))[1]
    assert b"poolgate_queue_wait_seconds_bucket" not in scrape
    assert b"poolgate_queue_waiting{" not in scrape


# --- reload, end ------------------------------------------------------------------------------


async def test_a_reload_keeps_a_queue_that_it_does_not_change(engine, http):
    queue = {"queue": {"concurrent": 1, "max_wait": "1m"}}
    async with gateway_for(engine.url, backend=queue) as app:
        url = app.data_url + "/v1/chat/completions"
        async with held_up(app) as before:
            asked = asyncio.create_task(http.post(url, json=BODY))
            await until(lambda: before.fair.waiting == 1)
            await app.reload(settings_for(engine.url, backend=queue, drain="1s"))
            assert only(app).queue is before
            await asyncio.sleep(1.2)  # the old configuration is not closed under who waits
            assert not asked.done()
            assert not engine.received
        assert (await asked).status == 200
        changed = {"queue": {"concurrent": 2}}
        await app.reload(settings_for(engine.url, backend=changed))
        assert only(app).queue is not before
        await app.reload(settings_for(engine.url))
        assert only(app).queue is None
        await until(lambda: not len(app._tasks))  # the old configurations are closed


async def test_those_that_wait_are_served_while_the_gateway_drains(engine, http):
    backend = {"queue": {"concurrent": 1, "max_wait": "1m"}}
    async with gateway_for(engine.url, backend=backend) as app:
        url = app.data_url + "/v1/chat/completions"
        async with held_up(app) as queue:
            asked = [asyncio.create_task(http.post(url, json=BODY)) for _ in range(3)]
            await until(lambda: queue.fair.waiting == 3)
            drained = asyncio.create_task(app.drain())
            await until(lambda: app.handler.draining)
        assert await drained
        assert [(await one).status for one in asked] == [200] * 3


async def test_stopping_ends_those_that_wait():
    async with RawEngine().running() as engine:
        backend = {"queue": {"concurrent": 1, "max_wait": "1h"}}
        async with gateway_for(engine.url, backend=backend) as app:
            ended = []
            queue = only(app).queue
            async with held_up(app):
                reader, writer = await begin(app, BODY)
                await until(lambda: queue.fair.waiting == 1)
                await app.stop()
                with suppress(ConnectionError):
                    ended.append(await asyncio.wait_for(reader.read(), PATIENCE))
                assert queue.fair.waiting == 0
            writer.close()
        assert ended in ([b""], [])
