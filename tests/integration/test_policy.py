"""What a request is charged, told and refused for, end to end, in memory and in Redis.

``row`` numbers are those of docs/cases.md, ``peers`` those of a survey of like gateways.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager

import aiohttp
import pytest

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, event, head
from integration.conftest import begin, gateway_for
from valkey_server import server
from waiting import PATIENCE, until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}
STREAM = {"kind": "text/event-stream", "chunked": True}
DONE = chunk(b"data: [DONE]\n\n") + chunk(b"")
TOKENS, REQUESTS = "tokens per 30 days", "requests per minute"
# Refilled so slowly that nothing comes back while a test runs: a token in 26 s, a request in 3 s.
PLENTY = {"tokens_per_month": 100_000, "requests_per_minute": 20, "concurrent": 50}


@pytest.fixture(scope="module")
def valkey():
    with server() as running:
        yield running


@pytest.fixture(params=["memory", "redis"])
def store(request):
    if request.param == "memory":
        return "memory"
    running = request.getfixturevalue("valkey")
    with running.client() as client:
        client.flushall()
    return running.url


@asynccontextmanager
async def limited(url, policy, store="memory", **more):
    """A gateway whose one open tenant is under ``policy``."""
    limits = {"store": store, "timeout": "5s"}  # the machine may be busy; how fast is not asked
    async with gateway_for(url, policies={"default": policy}, limits=limits, **more) as app:
        yield app


async def post(app, body, path="/v1/chat/completions", **more):
    async with aiohttp.ClientSession() as http:
        async with http.post(app.data_url + path, json=body, **more) as reply:
            return reply.status, reply.headers, await reply.read()


async def standing(app):
    """Use of each quota once all that has ended is settled."""
    limiting = app.generation.runtime.limiting
    [tenant] = app.generation.runtime.tenants.tenants()
    await until(lambda: not limiting.leases.busy)
    decisions = await limiting.leases.standing(tenant)
    return {
        charge.key.name: decision.limit - decision.remaining
        for charge, decision in decisions.items()
    }


async def used(app, quota=TOKENS):
    return (await standing(app))[quota]


def whole(usage, **more):
    async def script(request, wire):
        wire.write(answer(json.dumps({**CHAT, **more, "usage": usage}).encode()))

    return script


def streamed(*events, end=DONE):
    async def script(request, wire):
        wire.write(head(**STREAM) + b"".join(map(chunk, events)) + end)

    return script


def usage(prompt, completion, **more):
    return {"prompt_tokens": prompt, "completion_tokens": completion, **more}


# --- what is charged ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_usage_is_charged(engine, store, stream):
    told = usage(100, 7)
    engine.script = whole(told)
    if stream:
        engine.script = streamed(delta("a", "stop"), event({"choices": [], "usage": told}))
    async with limited(engine.url, PLENTY, store) as app:
        status, headers, _ = await post(app, {**BODY, "stream": stream})
        assert status == 200
        reserved = 100_000 - int(headers["x-ratelimit-remaining-tokens"])
        assert 40 < reserved < 100
        assert await standing(app) == {TOKENS: 107, REQUESTS: 1, "concurrent requests": 0}


MESSAGE = {
    "id": "x",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "a"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 7},
}
RESPONSE = {
    "id": "x",
    "object": "response",
    "status": "completed",
    "output": [],
    "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
}


@pytest.mark.parametrize(
    ("path", "body", "reply"),
    [
        ("/v1/messages", BODY, MESSAGE),
        ("/v1/responses", {"model": "m", "input": "hello", "max_output_tokens": 40}, RESPONSE),
        ("/v1/completions", {"model": "m", "prompt": "hello"}, {**CHAT, "usage": usage(5, 7)}),
    ],
)
async def test_peers_14_every_dialects_usage_is_charged(engine, path, body, reply):
    async def script(request, wire):
        wire.write(answer(json.dumps(reply).encode()))

    engine.script = script
    async with limited(engine.url, PLENTY) as app:
        assert (await post(app, body, path))[0] == 200
        assert await used(app) == 12


async def test_peers_27_usage_spread_over_events_is_charged_once(engine):
    def named(kind, **more):
        return f"event: {kind}\n".encode() + event({"type": kind, **more})

    start = {"id": "x", "role": "assistant", "usage": {"input_tokens": 100, "output_tokens": 1}}
    engine.script = streamed(
        named("message_start", message=start),
        named("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
        named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5}),
        named("message_stop"),
        end=chunk(b""),
    )
    async with limited(engine.url, PLENTY) as app:
        assert (await post(app, {**BODY, "stream": True}, "/v1/messages"))[0] == 200
        assert await used(app) == 105
    engine.script = streamed(
        *(event({**json.loads(delta("a")[6:]), "usage": usage(10, n)}) for n in (1, 2)),
        event({**json.loads(delta("a", "stop")[6:]), "usage": usage(10, 3)}),
    )
    async with limited(engine.url, PLENTY) as app:
        assert (await post(app, {**BODY, "stream": True}))[0] == 200
        assert await used(app) == 13


@pytest.mark.parametrize(("weight", "charge"), [(1.0, 107), (0.25, 47), (0.0, 27)])
async def test_peers_28_cached_tokens_count_by_their_weight(engine, store, weight, charge):
    engine.script = whole(usage(100, 7, prompt_tokens_details={"cached_tokens": 80}))
    policy = {**PLENTY, "cached_token_weight": weight}
    async with limited(engine.url, policy, store) as app:
        await post(app, BODY)
        assert await used(app) == charge


async def test_input_and_output_have_quotas_of_their_own(engine, store):
    engine.script = whole(usage(100, 7))
    policy = {"input_tokens_per_minute": 150, "output_tokens_per_minute": 60}
    async with limited(engine.url, policy, store) as app:
        _, headers, _ = await post(app, BODY)
        assert headers["x-ratelimit-limit-input-tokens"] == "150"
        assert headers["x-ratelimit-remaining-output-tokens"] == "20"
        found = await standing(app)
        assert 95 <= found["input tokens per minute"] <= 100  # less what came back meanwhile
        assert 5 <= found["output tokens per minute"] <= 7


async def test_row_26_what_was_used_beyond_the_reservation_is_a_debt(engine, store):
    engine.script = whole(usage(10, 150))
    body = {**BODY, "max_tokens": 1}
    released = {"completeness": {"action": "flag"}}  # or nobody would get such an answer
    policy = {"tokens_per_minute": 50}
    async with limited(engine.url, policy, store, integrity=released) as app:
        assert (await post(app, body))[0] == 200
        assert await used(app, "tokens per minute") == 50  # all of it, and more is owed
        status, headers, text = await post(app, body)
        assert status == 429
        assert int(headers["Retry-After"]) >= 60  # a minute gives 50: the debt is longer
        assert b"tokens per minute" in text


# --- row 35: own counts -------------------------------------------------------------------------


async def prompt_alone(app):
    """The length of the usual prompt, as told."""
    _, headers, _ = await post(app, {**BODY, "max_tokens": 1})
    return int(headers["x-poolgate-prompt-tokens"])


@pytest.mark.parametrize("n", [1, 4])
async def test_row_35_a_stream_without_usage_is_charged_by_our_count(engine, store, n):
    def piece(place, finish=None):
        choice = {"index": place, "delta": {"content": "a"}, "finish_reason": finish}
        return event({"id": "x", "choices": [choice]})

    async with limited(engine.url, PLENTY, store) as app:
        length = await prompt_alone(app)
        before = await used(app)
        ends = [piece(place, "stop") for place in range(n)]
        engine.script = streamed(*(piece(place) for place in range(n) for _ in range(10)), *ends)
        assert (await post(app, {**BODY, "stream": True, "n": n}))[0] == 200
        # An event a token; the last of each choice and [DONE] count too.
        assert await used(app) - before == length + 11 * n + 1


async def test_row_35_a_client_that_leaves_half_way_is_charged_what_came(engine, store):
    async def half(request, wire):
        wire.write(head(**STREAM) + b"".join(chunk(delta("a")) for _ in range(20)))
        await asyncio.sleep(30)

    async with limited(engine.url, PLENTY, store) as app:
        length = await prompt_alone(app)
        before = await standing(app)
        engine.script = half
        reader, writer = await begin(app, {**BODY, "stream": True})
        async with asyncio.timeout(PATIENCE):
            seen = b""
            while seen.count(b"data: ") < 20:
                seen += await reader.read(65536)
        writer.transport.abort()
        await until(lambda: not app.handler.in_flight)
        after = await standing(app)
        assert after[TOKENS] - before[TOKENS] == length + 20
        assert after[REQUESTS] - before[REQUESTS] == 1
        assert after["concurrent requests"] == 0


async def test_a_whole_answer_without_usage_is_not_free(engine):
    body = json.dumps({key: value for key, value in CHAT.items() if key != "usage"}).encode()

    async def script(request, wire):
        wire.write(answer(body))

    async with limited(engine.url, PLENTY) as app:
        length = await prompt_alone(app)
        before = await used(app)
        engine.script = script
        await post(app, BODY)
        assert await used(app) - before == length + min(40, -(-len(body) // 4))


async def test_a_bound_is_not_charged_where_the_engine_tells_no_usage(http):
    text = "some words and more " * 2000
    body = {**BODY, "messages": [{"role": "user", "content": text}], "stream": True}
    async with RawEngine(limit=10**6, context=10**6).running() as engine:
        engine.script = streamed(delta("a", "stop"))
        async with limited(engine.url, PLENTY) as app:
            _, headers, _ = await post(app, body)
            assert headers["x-poolgate-prompt-tokens"].startswith("<=")
            bound = int(headers["x-poolgate-prompt-tokens"][2:])
            count = json.loads((await post(app, body, "/v1/messages/count_tokens"))[2])
            assert await used(app) < bound / 2
            assert abs(await used(app) - count["input_tokens"]) < 100


# --- row 34: what is given back -----------------------------------------------------------------


async def abort(request, wire):
    wire.abort()


async def fail(request, wire):
    wire.write(answer(b'{"error": {"message": "no"}}', status="500 Internal Server Error"))


async def die_before_the_first_byte(request, wire):
    wire.write(head(**STREAM))
    await asyncio.sleep(0.01)
    wire.abort()


async def die_within_a_whole_answer(request, wire):
    wire.write(head(length=1000) + b'{"id": "x", ')
    await asyncio.sleep(0.01)
    wire.abort()


FAILURES = {
    "abort": abort,
    "error_status": fail,
    "error_in_200": streamed(event({"error": {"message": "q", "code": 503}})),
    "before_first_byte": die_before_the_first_byte,
    "within_whole": die_within_a_whole_answer,
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_row_34_what_never_came_is_given_back_without_drift(engine, store, failure):
    engine.script = FAILURES[failure]
    stream = failure not in ("within_whole", "error_status")
    async with limited(engine.url, PLENTY, store) as app:
        for _ in range(20):
            try:
                assert (await post(app, {**BODY, "stream": stream}))[0] != 429
            except aiohttp.ClientPayloadError:
                assert failure == "before_first_byte"  # a stream begun and cut
        assert set((await standing(app)).values()) == {0}
    assert len(engine.received) == 20


async def test_row_34_an_engine_that_is_not_there_costs_nothing():
    async with RawEngine().running() as engine:
        url = engine.url
        async with limited(url, PLENTY) as app:
            engine._server.close()
            for connection in engine.connections:
                connection.end()
            assert (await post(app, BODY))[0] in (502, 503)
            assert set((await standing(app)).values()) == {0}


async def test_row_34_a_stream_that_dies_after_ten_tokens_is_charged_for_ten(engine, store):
    async def dying(request, wire):
        wire.write(head(**STREAM) + b"".join(chunk(delta("a")) for _ in range(10)))
        await asyncio.sleep(0.05)
        wire.abort()

    async with limited(engine.url, PLENTY, store) as app:
        length = await prompt_alone(app)
        before = await used(app)
        engine.script = dying
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(app, {**BODY, "stream": True})
        assert await used(app) - before == length + 10


async def test_a_withheld_answer_is_free(engine):
    long = {**BODY, "messages": [{"role": "user", "content": "word " * 400}]}
    engine.script = whole(usage(10, 1))
    integrity = {"prompt_tokens": {"action": "block"}}
    async with limited(engine.url, PLENTY, integrity=integrity) as app:
        assert (await post(app, long))[0] == 502
        assert set((await standing(app)).values()) == {0}


async def test_refusals_charge_nothing(engine, store):
    async with limited(engine.url, PLENTY, store) as app:
        for body, path, status in (
            ({**BODY, "messages": [{"role": "user", "content": "a " * 2000}]}, None, 400),
            ({"model": "m"}, None, 400),
            (BODY, "/v1/nothing", 404),
        ):
            assert (await post(app, body, path or "/v1/chat/completions"))[0] == status
        assert set((await standing(app)).values()) == {0}
    assert engine.received == []


async def hangs(request, wire):
    await asyncio.sleep(30)


async def test_row_39_what_a_client_leaves_before_the_first_byte_costs_its_prompt(engine, store):
    """It went to the engine, which has begun on it."""
    engine.script = hangs
    async with limited(engine.url, PLENTY, store) as app:
        _, writer = await begin(app, BODY)
        await until(lambda: engine.received)
        writer.transport.abort()
        await until(lambda: not app.handler.in_flight)
        found = await standing(app)
        assert (found[REQUESTS], found["concurrent requests"]) == (1, 0)
        assert 5 < found[TOKENS] < 40  # without its forty tokens of output


async def test_what_a_client_leaves_in_the_queue_is_free(engine, store):
    engine.script = hangs
    queue = {"queue": {"concurrent": 1, "max_wait": "20s"}}
    async with limited(engine.url, PLENTY, store, backend=queue) as app:
        leases = app.generation.runtime.limiting.leases
        [tenant] = app.generation.runtime.tenants.tenants()
        [backend] = app.generation.runtime.backends

        async def taken():
            return [d.limit - d.remaining for d in (await leases.standing(tenant)).values()]

        _, first = await begin(app, BODY)
        await until(lambda: engine.received)
        before = await taken()
        _, second = await begin(app, BODY)
        await until(lambda: backend.queue.fair.waiting)
        assert await taken() == [2 * amount for amount in before]
        second.transport.abort()
        await until(lambda: leases.in_flight("default") == 1)
        assert await taken() == before
        first.transport.abort()


async def test_what_is_read_out_for_the_engines_sake_is_charged_when_it_ends(engine, store):
    go_on = asyncio.Event()

    async def slow(request, wire):
        await go_on.wait()
        wire.write(answer(json.dumps({**CHAT, "usage": usage(100, 30)}).encode()))

    engine.script = slow
    more = {"backend": {"on_disconnect": "drain"}}
    async with limited(engine.url, PLENTY, store, **more) as app:
        _, writer = await begin(app, BODY)
        await until(lambda: engine.received)
        writer.transport.abort()
        await until(lambda: not app.handler.in_flight)
        leases = app.generation.runtime.limiting.leases
        assert leases.in_flight("default") == 1  # the engine is still at it: so is the slot
        go_on.set()
        assert await standing(app) == {TOKENS: 130, REQUESTS: 1, "concurrent requests": 0}


async def test_a_storm_of_clients_that_leave_gives_every_slot_back(engine, store):
    async def uneven(request, wire):
        wire.write(head(**STREAM) + chunk(delta("a")))
        await asyncio.sleep(random.Random(len(engine.received)).random() / 20)
        wire.write(chunk(delta("b", "stop")) + DONE)

    engine.script = uneven
    dice = random.Random(35)
    policy = {"concurrent": 8, "requests_per_minute": 600}

    async def one(app):
        reader, writer = await begin(app, {**BODY, "stream": True})
        if dice.random() < 0.5:
            await reader.read(1)  # an answer, or a refusal, has begun
        await asyncio.sleep(dice.random() / 10)
        writer.transport.abort()

    async with limited(engine.url, policy, store) as app:
        await asyncio.gather(*(one(app) for _ in range(120)))
        async with asyncio.timeout(PATIENCE):
            while (await standing(app))["concurrent requests"] or app.handler.in_flight:
                await asyncio.sleep(0.01)
        assert engine.received
        replies = await asyncio.gather(*(post(app, {**BODY, "stream": True}) for _ in range(8)))
        assert [status for status, _, _ in replies] == [200] * 8


# --- what is refused ----------------------------------------------------------------------------


async def test_peers_15_five_at_once_cannot_pass_together(engine, store):
    async with limited(engine.url, {"tokens_per_minute": 100}, store) as app:
        replies = await asyncio.gather(*(post(app, {**BODY, "max_tokens": 45}) for _ in range(5)))
        assert sorted(status for status, _, _ in replies) == [200, 429, 429, 429, 429]
    assert len(engine.received) == 1


async def test_peers_16_an_assumed_output_never_makes_a_request_impossible(engine, store):
    body = {key: value for key, value in BODY.items() if key != "max_tokens"}
    async with limited(engine.url, {"tokens_per_minute": 100}, store) as app:
        assert (await post(app, body))[0] == 200
        assert 9 <= await used(app, "tokens per minute") <= 11  # settled with what was used


async def test_peers_18_a_request_over_the_whole_allowance_is_a_400_without_a_wait(engine, store):
    async with limited(engine.url, {"tokens_per_minute": 100}, store) as app:
        status, headers, text = await post(app, {**BODY, "max_tokens": 101})
        assert status == 400
        assert "Retry-After" not in headers
        assert json.loads(text)["error"]["code"] == "request_exceeds_allowance"
        assert headers["x-ratelimit-remaining-tokens"] == "100"
    assert engine.received == []


async def test_a_bound_over_the_allowance_is_counted_before_it_is_refused():
    text = "some words and more " * 2000
    body = {**BODY, "messages": [{"role": "user", "content": text}]}
    async with RawEngine(limit=10**6, context=10**6).running() as engine:
        async with limited(engine.url, {"tokens_per_minute": 10**6}) as app:
            _, headers, _ = await post(app, body)
            bound = int(headers["x-poolgate-prompt-tokens"].removeprefix("<="))
            told = (await post(app, body, "/v1/messages/count_tokens"))[2]
            count = json.loads(told)["input_tokens"]
        assert count + 200 < bound
        for allowance, status in ((count + 100, 200), (count - 100, 400)):
            async with limited(engine.url, {"tokens_per_minute": allowance}) as app:
                got, headers, _ = await post(app, body)
                assert got == status
                assert headers["x-poolgate-prompt-tokens"].isdigit()


async def test_peers_21_no_maximum_is_needed_where_no_tokens_are_limited(engine):
    body = {key: value for key, value in BODY.items() if key != "max_tokens"}
    async with limited(engine.url, {"requests_per_minute": 5}) as app:
        assert (await post(app, body))[0] == 200


async def test_row_32_a_call_refused_for_its_concurrency_uses_no_request(engine, store):
    go_on = asyncio.Event()

    async def slow(request, wire):
        await go_on.wait()
        await engine.answer_chat(request, wire)

    engine.script = slow
    policy = {"requests_per_minute": 2, "concurrent": 1}
    async with limited(engine.url, policy, store) as app:
        first = asyncio.create_task(post(app, BODY))
        await until(lambda: engine.received)
        status, headers, text = await post(app, BODY)
        assert status == 429
        assert b"concurrent requests" in text  # row 39: the quota that was hit
        assert headers["x-ratelimit-remaining-requests"] == "1"
        go_on.set()
        assert (await first)[0] == 200
        await standing(app)
        assert (await post(app, BODY))[0] == 200
        assert (await post(app, BODY))[0] == 429


async def test_peers_31_an_uncounted_prompt_that_is_let_through_is_charged_by_its_bytes(engine):
    engine.counts = lambda question: None
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {**BODY, "messages": [{"role": "user", "content": [image]}]}
    engine.script = streamed(delta("a", "stop"))
    more = {"backend": {"limit": {"when_uncountable": "allow"}}}
    async with limited(engine.url, PLENTY, **more) as app:
        assert (await post(app, {**body, "stream": True}))[0] == 200
        size = len(json.dumps({**body, "stream": True}))
        assert size <= await used(app) <= size + 5
        for _ in range(3):
            assert (await post(app, body))[0] == 200


async def test_quotas_of_some_models_count_besides(engine, store):
    policy = {
        "requests_per_minute": 5,
        "per_model": {"glm-*": {"requests_per_minute": 2}, "glm-5": {"requests_per_minute": 1}},
    }

    async def ask(app, model):
        return await post(app, {**BODY, "model": model})

    async with limited(engine.url, policy, store) as app:
        assert [(await ask(app, "glm-5"))[0] for _ in range(2)] == [200, 429]
        assert (await ask(app, "glm-4"))[0] == 200
        status, _, text = await ask(app, "glm-4")
        assert status == 429
        assert b"requests per minute for models glm-*" in text
        assert refusals(app, "requests per minute for models glm-5") == 1
        assert [(await ask(app, "other"))[0] for _ in range(4)] == [200, 200, 200, 429]


async def test_a_shadow_policy_refuses_nothing_and_shows_itself(engine, store):
    policy = {"requests_per_minute": 1, "shadow": True}
    async with limited(engine.url, policy, store) as app:
        replies = [await post(app, BODY) for _ in range(3)]
        assert [status for status, _, _ in replies] == [200] * 3
        assert [h["x-ratelimit-remaining-requests"] for _, h, _ in replies] == ["0"] * 3
        assert refusals(app, mode="shadow") == 2
        assert refusals(app, mode="refused") == 0


def refusals(app, quota=REQUESTS, mode="refused"):
    labels = {"tenant": "default", "quota": quota, "mode": mode}
    return app.metrics.registry.get_sample_value("poolgate_quota_refusals_total", labels) or 0


async def test_row_39_the_wait_that_is_told_is_true(engine, store):
    policy = {"requests_per_minute": 60, "bursts": {"requests_per_minute": 2}}
    async with limited(engine.url, policy, store) as app:
        while (reply := await post(app, BODY))[0] == 200:
            pass
        status, headers, _ = reply
        assert (status, headers["x-ratelimit-limit-requests"]) == (429, "2")
        assert len(engine.received) >= 2
        await asyncio.sleep(int(headers["Retry-After"]))
        assert (await post(app, BODY))[0] == 200


# --- what is told -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_remaining_is_right_under_concurrency(engine, store, stream):
    """No two calls are told the same, and as many are admitted as there were."""
    if stream:
        engine.script = streamed(delta("a", "stop"))
    policy = {"requests_per_minute": 10}  # one every 6 s: none comes back meanwhile
    async with limited(engine.url, policy, store) as app:
        replies = await asyncio.gather(*(post(app, {**BODY, "stream": stream}) for _ in range(30)))
        told = [(status, h["x-ratelimit-remaining-requests"]) for status, h, _ in replies]
        admitted = sorted(int(left) for status, left in told if status == 200)
        assert admitted == list(range(10))
        assert [left for status, left in told if status == 429] == ["0"] * 20
        assert {h["x-ratelimit-limit-requests"] for _, h, _ in replies} == {"10"}
        assert all(int(h["Retry-After"]) >= 1 for s, h, _ in replies if s == 429)
        assert all(0 < int(h["x-ratelimit-reset-requests"]) <= 60 for _, h, _ in replies)


async def test_tokens_told_are_those_left_after_every_reservation(engine, store):
    policy = {"tokens_per_minute": 100_000, "tokens_per_day": 1000}  # one comes back in 86 s
    gate = asyncio.Event()

    async def gated(request, wire):
        await gate.wait()
        await engine.answer_chat(request, wire)

    engine.script = gated
    async with limited(engine.url, policy, store) as app:
        calls = [asyncio.ensure_future(post(app, {**BODY, "max_tokens": 80})) for _ in range(20)]
        # No one settles before all have asked.
        await until(lambda: len(engine.received) + refusals(app, "tokens per day") == 20)
        gate.set()
        replies = await asyncio.gather(*calls)
        left = sorted(
            (int(h["x-ratelimit-remaining-tokens"]) for s, h, _ in replies if s == 200),
            reverse=True,
        )
        cost = 1000 - left[0]
        assert len(left) == 1000 // cost
        assert left == [1000 - cost * (i + 1) for i in range(len(left))]
        assert {h["x-ratelimit-limit-tokens"] for _, h, _ in replies} == {"1000"}


async def test_peers_30_the_engines_own_retry_after_passes(engine):
    async def busy(request, wire):
        wire.write(
            head("429 Too Many Requests", length=2, more=["Retry-After: 7", "x-ratelimit-x: 1"])
            + b"{}"
        )

    engine.script = busy
    async with limited(engine.url, PLENTY) as app:
        status, headers, _ = await post(app, BODY)
        assert (status, headers["Retry-After"]) == (429, "7")
        assert "x-ratelimit-x" not in headers
        assert headers["x-ratelimit-limit-requests"] == "20"
        assert set((await standing(app)).values()) == {0}
