"""What is checked of an answer, and what a finding does (cases 34, 35, 56)."""

from __future__ import annotations

import asyncio
import io
import json

import aiohttp
import pytest

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, event, head
from gateway.simulate import INSTANT, Faults, SimulateSettings, Timing
from integration.conftest import gateway_and_engine, gateway_for, raw_call
from waiting import until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def sample(app, name, **labels):
    return app.metrics.registry.get_sample_value(name, labels) or 0


def checked(app, check, verdict):
    return sample(app, "poolgate_checks_total", check=check, verdict=verdict)


async def settled(app, check="prompt_tokens", count=1):
    await until(
        lambda: sum(checked(app, check, v) for v in ("ok", "mismatch", "unverifiable")) >= count
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_every_answer_is_checked(stream):
    async with gateway_and_engine() as live:
        status, headers, body = await live.post("/v1/chat/completions", {**BODY, "stream": stream})
        assert status == 200
        await settled(live.app)
        assert checked(live.app, "prompt_tokens", "ok") == 1
        assert int(headers["x-poolgate-prompt-tokens"]) > 0
        assert b'"usage":{' not in body if stream else b'"usage":{' in body


@pytest.mark.parametrize("stream", [True, False])
async def test_a_template_that_drifted_is_a_mismatch(stream):
    sim = SimulateSettings(timing=INSTANT, faults=Faults(drift=True))
    async with gateway_and_engine(sim) as live:
        status, _, _ = await live.post("/v1/chat/completions", {**BODY, "stream": stream})
        assert status == 200
        await settled(live.app)
        assert checked(live.app, "prompt_tokens", "mismatch") == 1
        assert not live.app.recorder.incidents  # a drift is no incident: only under half is


async def silent_truncation(request, wire):
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    wire.write(answer(json.dumps({**CHAT, "usage": usage}).encode()))


@pytest.mark.parametrize(("action", "status"), [("flag", 200), ("block", 502)])
async def test_a_count_under_half_of_ours_is_suspect(action, status):
    long = {**BODY, "messages": [{"role": "user", "content": "word " * 400}]}
    async with RawEngine(limit=5000, context=9000).running() as engine:
        engine.script = silent_truncation
        integrity = {"prompt_tokens": {"action": action}}
        async with gateway_for(engine.url, integrity=integrity) as app:
            reply = await raw_post(app, long)
            assert reply[0] == status
            await settled(app)
            [incident] = app.recorder.incidents
            assert incident["kind"] == "prompt_tokens"
            assert incident["finding"]["returned"] == 100
            assert "word" not in json.dumps(incident)
            assert sample(app, "poolgate_incidents_total", kind="prompt_tokens") == 1
            if status == 502:
                error = json.loads(reply[1])["error"]
                assert error["code"] == "response_withheld"
                assert error["type"] == "upstream_integrity"
                assert error["incident"] == incident["id"]
                assert b"hello" not in reply[1]


@pytest.mark.parametrize(("tokens", "found"), [(1017, False), (1018, True)])
async def test_an_uncounted_prompt_the_engine_took_over_its_limit_is_suspect(tokens, found):
    async def script(request, wire):
        usage = {"prompt_tokens": tokens, "completion_tokens": 1}
        wire.write(answer(json.dumps({**CHAT, "usage": usage}).encode()))

    uncounted = {**BODY, "input_ids": [7]}
    backend = {"limit": {"when_uncountable": "allow", "margin": 100}}
    async with RawEngine().running() as engine:
        engine.script = script
        async with gateway_for(engine.url, backend=backend) as app:
            assert (await raw_post(app, uncounted))[0] == 200
            await settled(app)
            reasons = [incident["finding"]["reason"] for incident in app.recorder.incidents]
            assert reasons == (["over_limit"] if found else [])


async def test_a_suspect_stream_has_no_end_where_usage_blocks():
    async def script(request, wire):
        usage = event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        wire.write(head(kind="text/event-stream", chunked=True))
        wire.write(chunk(delta("hello")))
        await asyncio.sleep(0.1)  # released: only the end is left to withhold
        wire.write(chunk(delta("", "stop")) + chunk(usage))
        wire.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    long = {**BODY, "stream": True, "messages": [{"role": "user", "content": "word " * 400}]}
    integrity = {"prompt_tokens": {"action": "block"}}
    async with RawEngine(limit=5000, context=9000).running() as engine:
        engine.script = script
        async with gateway_for(engine.url, integrity=integrity) as app:
            with pytest.raises(aiohttp.ClientPayloadError):
                await raw_post(app, long)
            seen = await raw_call(app, long)
            assert b"[DONE]" not in seen
            assert not seen.endswith(b"0\r\n\r\n")
            assert b"response_withheld" in seen


async def test_counting_endpoints_answer_over_the_limit_too_and_never_reach_the_engine():
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 2000}]}
    async with RawEngine().running() as engine, gateway_for(engine.url) as app:
        status, text, headers = await raw_post(app, body, "/v1/messages/count_tokens")
        assert status == 200
        assert json.loads(text)["input_tokens"] > 2000
        assert headers["x-poolgate-prompt-tokens"] == str(json.loads(text)["input_tokens"])
        assert (await raw_post(app, {**body, "max_tokens": 1}, "/v1/messages"))[0] == 400
    assert engine.received == []


async def raw_post(app, body, path="/v1/chat/completions", **headers):
    async with aiohttp.ClientSession() as http:
        async with http.post(app.data_url + path, json=body, headers=headers) as reply:
            return reply.status, await reply.read(), reply.headers


async def test_sampling_off_checks_nothing():
    async with gateway_and_engine(integrity={"prompt_tokens": {"sample": 0.0}}) as live:
        await live.post("/v1/chat/completions", BODY)
        assert checked(live.app, "prompt_tokens", "ok") == 0


async def test_a_bound_admits_and_the_exact_count_follows_in_the_shadow():
    sim = SimulateSettings(
        timing=INSTANT, context=1 << 20, prefill_pool=1 << 20, decode_pool=1 << 20
    )
    body = {**BODY, "messages": [{"role": "user", "content": "some words and more " * 2000}]}
    async with gateway_and_engine(sim) as live:
        _, headers, _ = await live.post("/v1/chat/completions", body)
        assert headers["x-poolgate-prompt-tokens"].startswith("<=")
        await settled(live.app)
        assert checked(live.app, "prompt_tokens", "ok") == 1
        assert checked(live.app, "bound", "ok") == 1


LESSONS = 50
LEAKY = SimulateSettings(
    context=131_072,
    prefill_pool=32_768,
    decode_pool=98_304,
    faults=Faults(to_finish=True, server_info=True),
    timing=Timing(base=0.002, prefill_tokens_per_second=40_000, inter_token=0.0),
)


def words(tokens, start):
    content = f"{start} begins:" + " a" * tokens
    return {**BODY, "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(("action", "status"), [("hold", 502), ("flag", 200), ("off", 200)])
async def test_too_fast_to_be_true(action, status):
    async with gateway_and_engine(LEAKY, integrity={"latency": {"action": action}}) as live:
        for lesson in range(LESSONS):
            body = {**words(5_000 + lesson * 25, lesson), "stream": True}
            assert (await live.post("/v1/chat/completions", body))[0] == 200
        got, _, text = await live.post("/v1/chat/completions", words(50_000, "leak"))
        assert got == status
        await settled(live.app, count=LESSONS)
        findings = [incident["kind"] for incident in live.app.recorder.incidents]
        assert findings == ([] if action == "off" else ["latency"])
        assert checked(live.app, "latency", "mismatch") == (action != "off")
        assert (b"choices" in text) == (status == 200)


async def test_a_cached_prompt_is_not_taken_for_a_leak():
    sim = SimulateSettings(
        context=131_072,
        prefill_pool=98_304,
        decode_pool=131_072,
        timing=Timing(base=0.002, prefill_tokens_per_second=40_000, inter_token=0.0),
    )
    async with gateway_and_engine(sim, integrity={"latency": {"action": "hold"}}) as live:
        for lesson in range(LESSONS):
            body = {**words(5_000 + lesson * 25, lesson), "stream": True}
            assert (await live.post("/v1/chat/completions", body))[0] == 200
        first = words(40_000, "history")
        again = {
            **first,
            "messages": [
                *first["messages"],
                {"role": "assistant", "content": "so"},
                {"role": "user", "content": "and?"},
            ],
        }
        assert (await live.post("/v1/chat/completions", first))[0] == 200
        assert (await live.post("/v1/chat/completions", again))[0] == 200
        assert not live.app.recorder.incidents


async def test_each_tenant_has_its_own_salt_and_no_client_sets_one():
    from hashlib import sha256

    tenants = {
        "tenants": [
            {"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in "ab"
        ]
    }
    async with RawEngine().running() as engine, gateway_for(engine.url, **tenants) as app:
        async with aiohttp.ClientSession() as http:
            for key in "aab":
                body = {**BODY, "cache_salt": "mine", "extra_key": "x", "rid": "r", "priority": 9}
                await http.post(
                    app.data_url + "/v1/chat/completions", json=body, headers={"x-api-key": key}
                )
            refused = await http.post(
                app.data_url + "/v1/chat/completions",
                json={**BODY, "kv_transfer_params": {"x": 1}},
                headers={"x-api-key": "a"},
            )
            assert refused.status == 400
            assert (await refused.json())["error"]["param"] == "kv_transfer_params"
    salts = [request.json["cache_salt"] for request in engine.received]
    assert salts[0] == salts[1] != salts[2]
    assert "mine" not in salts
    for request in engine.received:
        assert not {"extra_key", "priority"} & request.json.keys()
        assert request.json["rid"] == request.header("x-request-id")[0]
        assert len(request.json["cache_salt"]) == 64


async def test_a_body_that_needs_no_edit_goes_out_as_it_came():
    raw = (
        b'{ "model":"m",\n "messages":[{"role":"user","content":"hi"}],'
        b' "unknown" : [1e2, "\\u00e9"]}'
    )
    async with RawEngine().running() as engine:
        async with gateway_for(
            engine.url,
            backend={"cache_salt": "off"},
            integrity={"binding": {"action": "off"}},
        ) as app:
            async with aiohttp.ClientSession() as http:
                await http.post(app.data_url + "/v1/chat/completions", data=raw)
        assert engine.received[0].body == raw


@pytest.mark.parametrize("size", [300_000, 3_000_000])
@pytest.mark.parametrize("chunked", [True, False])
async def test_a_large_body_goes_out_as_it_came_behind_what_is_added(size, chunked):
    raw = json.dumps({**BODY, "unknown": "some \n words " * (size // 14)}).encode()

    async def pieces():
        for at in range(0, len(raw), 99_999):
            yield raw[at : at + 99_999]

    async with RawEngine().running() as engine, gateway_for(engine.url) as app:
        async with aiohttp.ClientSession() as http:
            data = pieces() if chunked else io.BytesIO(raw)
            reply = await http.post(app.data_url + "/v1/chat/completions", data=data)
            assert reply.status == 200
    [received] = engine.received
    assert received.body.endswith(b"," + raw[1:])
    assert received.header("content-length") == [str(len(received.body))]
    assert received.json["unknown"] == json.loads(raw)["unknown"]


QUOTAS = {
    "policies": {"default": {"requests_per_minute": 2, "tokens_per_minute": 1000, "concurrent": 8}}
}


async def test_quotas_are_told_and_held():
    async with RawEngine().running() as engine, gateway_for(engine.url, **QUOTAS) as app:
        replies = [await raw_post(app, BODY) for _ in range(3)]
        assert [status for status, _, _ in replies] == [200, 200, 429]
        assert replies[0][2]["x-ratelimit-limit-requests"] == "2"
        assert replies[0][2]["x-ratelimit-remaining-requests"] == "1"
        assert int(replies[2][2]["Retry-After"]) >= 1
        assert json.loads(replies[2][1])["error"]["code"] == "rate_limit_exceeded"
        assert len(engine.received) == 2
        big = await raw_post(app, {**BODY, "max_tokens": 5000})
        assert big[0] == 400
        assert "Retry-After" not in big[2]


async def test_refused_and_failed_calls_cost_nothing():
    quotas = {"policies": {"default": {"requests_per_minute": 2, "concurrent": 1}}}

    async def broken(request, wire):
        wire.abort()

    async with RawEngine().running() as engine, gateway_for(engine.url, **quotas) as app:
        engine.script = broken
        for _ in range(4):
            assert (await raw_post(app, BODY))[0] == 502
        for bad in (
            {"model": "m"},
            {**BODY, "messages": [{"role": "user", "content": "a " * 2000}]},
        ):
            for _ in range(3):
                assert (await raw_post(app, bad))[0] == 400
        engine.script = engine.answer_chat
        assert [(await raw_post(app, BODY))[0] for _ in range(3)] == [200, 200, 429]
