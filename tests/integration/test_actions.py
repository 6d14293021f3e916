"""What a finding does: the answer is asked for elsewhere, the backend taken out."""

from __future__ import annotations

import asyncio
import json
from io import BytesIO

import aiohttp
import pytest

from fakes.raw_engine import RawEngine, chunk, delta, head
from integration.conftest import gateway_and_engine, gateway_for, raw_call
from integration.faulty import (
    BODY,
    LONG,
    OTHER,
    QUARANTINE,
    SWAPPED,
    admin,
    gateway_of,
    standing,
    two_engines,
)
from integration.test_checks import LEAKY, LESSONS, checked, raw_post, sample, settled, words
from waiting import until

# --- another backend ---------------------------------------------------------------------------


async def test_a_withheld_answer_is_asked_for_elsewhere():
    log = BytesIO()
    quotas = {"policies": {"default": {"requests_per_minute": 10}}}
    async with two_engines() as (one, other), gateway_of(one, other, log=log, **quotas) as app:
        one.script = SWAPPED
        status, text, headers = await raw_post(app, BODY)
        assert status == 200
        assert json.loads(text)["choices"][0]["message"]["content"] == "hello"
        assert headers["x-ratelimit-remaining-requests"] == "9"  # charged once
        assert (len(one.received), len(other.received)) == (1, 1)
        [incident] = app.recorder.incidents
        assert incident["backend"] == "a"
        assert incident["withheld"]
        assert sample(app, "poolgate_withheld_retries_total", backend="a") == 1
        assert checked(app, "binding", "leak") == 1
        done = {"dialect": "openai_chat", "tenant": "default", "outcome": "complete"}
        assert sample(app, "poolgate_requests_total", backend="b", **done) == 1
        suspects = {"check": "binding"}
        assert sample(app, "poolgate_suspect_answers_total", backend="a", **suspects) == 1
        assert sample(app, "poolgate_suspect_answers_total", backend="b", **suspects) == 0
    [line] = [json.loads(each) for each in log.getvalue().splitlines()]
    assert (line["backend"], line["withheld_at"]) == ("b", "a")


async def test_it_is_asked_for_once_and_only_while_nothing_was_released():
    async with two_engines() as (one, other), gateway_of(one, other) as app:
        one.script = other.script = SWAPPED
        assert (await raw_post(app, BODY))[0] == 502
        assert (len(one.received), len(other.received)) == (1, 1)
        assert [incident["backend"] for incident in app.recorder.incidents] == ["a", "b"]

        async def late(request, wire):
            wire.write(head(kind="text/event-stream", chunked=True) + chunk(delta("hello")))
            await asyncio.sleep(0.1)
            wire.write(chunk(b"data: [DONE]\n\n") + chunk(b""))  # and no finish reason

        one.script = late
        other.script = other.answer_chat
        seen = await raw_call(app, {**BODY, "stream": True})
        assert b"hello" in seen
        assert b"response_withheld" in seen
        assert b"[DONE]" not in seen
        assert len(other.received) == 1


async def test_the_other_backend_must_admit_the_prompt():
    async with RawEngine(limit=9000, context=9000).running() as one:
        async with RawEngine(limit=300, context=400).running() as small:
            async with gateway_of(one, small) as app:
                one.script = SWAPPED
                assert (await raw_post(app, LONG))[0] == 502
                assert small.received == []
                assert (await raw_post(app, BODY))[0] == 200


@pytest.mark.parametrize("on_disconnect", ["drain", "cancel"])
async def test_a_withheld_stream_is_read_out_where_cancelling_can_corrupt_others(on_disconnect):
    async def script(request, wire):
        event = delta("foreign").replace(b'"x"', json.dumps(OTHER).encode())
        wire.write(head(kind="text/event-stream", chunked=True) + chunk(event))
        await asyncio.sleep(0.3)
        wire.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    backend = {"on_disconnect": on_disconnect}
    async with RawEngine().running() as engine, gateway_for(engine.url, backend=backend) as app:
        engine.script = script
        assert (await raw_post(app, {**BODY, "stream": True}))[0] == 502
        [received] = engine.received
        if on_disconnect == "cancel":
            await until(received.closed.is_set)
        else:
            await until(lambda: not app.handler.in_flight)
            await asyncio.sleep(0.1)
            assert not received.closed.is_set()


async def test_other_errors_are_not_asked_for_again():
    async def broken(request, wire):
        wire.abort()

    async with two_engines() as (one, other), gateway_of(one, other) as app:
        one.script = broken
        assert (await raw_post(app, BODY))[0] == 502
        assert other.received == []


# --- quarantine --------------------------------------------------------------------------------


async def test_quarantined_until_released():
    async with two_engines() as (one, other):
        async with gateway_of(one, other, integrity=QUARANTINE) as app:
            one.script = SWAPPED
            assert (await raw_post(app, BODY))[0] == 200
            told = await standing(app, "a")
            assert (told["state"], told["reason"]) == ("quarantined", "binding")
            [incident] = app.recorder.incidents
            assert told["incidents"] == [incident["id"]]
            assert incident["standing"] == "quarantined"
            await admin_metrics(app)
            assert sample(app, "poolgate_backend_standing", backend="a") == 2
            for _ in range(3):
                assert (await raw_post(app, BODY))[0] == 200
            assert len(one.received) == 1  # nothing more
            one.script = one.answer_chat
            status, body = await admin(app, "/backends/a/release", "POST")
            assert (status, body["standing"]) == (200, "serving")
            for _ in range(2):  # idle backends take turns
                assert (await raw_post(app, BODY))[0] == 200
            assert len(one.received) == 2
            assert (await admin(app, "/backends/nobody/release", "POST"))[0] == 404


async def admin_metrics(app):
    async with aiohttp.ClientSession() as http:
        await (await http.get(app.admin_url + "/metrics")).read()


async def test_the_cap_keeps_the_last_one_and_short_prompts_only():
    quarantine = QUARANTINE | {"quarantine": {"suspect_floor": 100}}
    async with two_engines() as (one, other):
        async with gateway_of(one, other, integrity=quarantine) as app:
            one.script = other.script = SWAPPED
            assert (await raw_post(app, BODY))[0] == 502
            assert (await standing(app, "a"))["state"] == "quarantined"
            told = await standing(app, "b")
            assert (told["state"], told["held_by_max_share"]) == ("suspect", True)
            other.script = other.answer_chat
            assert (await raw_post(app, BODY))[0] == 200
            status, text, _ = await raw_post(app, LONG)
            assert status == 503
            assert json.loads(text)["error"]["code"] == "backend_quarantined"
            assert "100 tokens" in json.loads(text)["error"]["message"]


async def test_a_model_whose_backends_are_all_out_answers_503_and_is_not_ready():
    quarantine = QUARANTINE | {"quarantine": {"max_share": 1.0}}
    async with RawEngine().running() as one, gateway_of(one, integrity=quarantine) as app:
        one.script = SWAPPED
        assert (await raw_post(app, BODY))[0] == 502
        status, text, _ = await raw_post(app, BODY)
        assert (status, json.loads(text)["error"]["code"]) == (503, "backend_quarantined")
        ready, body = await admin(app, "/readyz")
        assert ready == 503
        assert body["waiting_for"] == [{"backend": "a", "reason": "quarantined: binding"}]


async def test_a_quarantine_outlives_a_reload():
    async with two_engines() as (one, other):
        async with gateway_of(one, other, integrity=QUARANTINE) as app:
            one.script = SWAPPED
            await raw_post(app, BODY)
            await app.reload(app.settings)
            assert (await standing(app, "a"))["state"] == "quarantined"


async def test_a_leak_seen_by_its_latency_makes_the_backend_suspect_and_stops_learning():
    integrity = {"latency": {"action": "quarantine"}}
    async with gateway_and_engine(LEAKY, integrity=integrity) as live:
        for lesson in range(LESSONS):
            body = {**words(5_000 + lesson * 25, lesson), "stream": True}
            assert (await live.post("/v1/chat/completions", body))[0] == 200
        backend = live.app.generation.runtime.backends[0]
        await settled(live.app, count=LESSONS)
        learnt_from = len(backend.prefill.recent)
        assert (await live.post("/v1/chat/completions", words(50_000, "leak")))[0] == 502
        told = await standing(live.app, "sim")
        assert (told["state"], told["reason"]) == ("suspect", "latency")
        refused = await live.post("/v1/chat/completions", words(50_001, "again"))
        assert refused[0] == 503
        short = {**words(4_000, "short"), "stream": True}
        assert (await live.post("/v1/chat/completions", short))[0] == 200
        assert len(backend.prefill.recent) == learnt_from


async def test_a_ceiling_of_the_operators_judges_the_first_answer():
    backend = {"prefill_ceiling": 100_000}
    integrity = {"latency": {"action": "hold"}}
    async with gateway_and_engine(LEAKY, backend=backend, integrity=integrity) as live:
        assert (await live.post("/v1/chat/completions", words(50_000, "leak")))[0] == 502
