"""What a broken engine or a departed client must not do (cases 4, 5, 7, 9, 46, 48, 53)."""

from __future__ import annotations

import asyncio
import json

import pytest

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, event, head
from gateway.edge import relay
from integration.conftest import begin, gateway_for, raw_call
from waiting import PATIENCE, until

STREAM = {"kind": "text/event-stream", "chunked": True}
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LAST = chunk(b"")


def outcome(app, name):
    return app.metrics.registry.get_sample_value(
        "poolgate_requests_total",
        {"dialect": "openai_chat", "backend": "sim", "tenant": "default", "outcome": name},
    )


async def fin_inside_chunked(request, wire):
    wire.write(head(**STREAM) + chunk(delta("a")) + chunk(delta("b")))
    wire.close()


async def reset(request, wire):
    wire.write(head(**STREAM) + chunk(delta("a")))
    await asyncio.sleep(0.05)
    wire.abort()


async def close_delimited_without_done(request, wire):
    wire.write(head(kind="text/event-stream") + delta("a") + delta("b"))
    wire.close()


async def short_of_content_length(request, wire):
    wire.write(head(kind="text/event-stream", length=100_000) + delta("a"))
    wire.close()


@pytest.mark.parametrize(
    "script",
    [fin_inside_chunked, reset, close_delimited_without_done, short_of_content_length],
)
async def test_a_cut_stream_never_looks_complete(engine, script):  # case 4 a-d
    engine.script = script
    async with gateway_for(engine.url) as app:
        seen = await raw_call(app, {**BODY, "stream": True})
        assert b"data: " in seen
        assert not seen.endswith(b"0\r\n\r\n")
        assert b"[DONE]" not in seen
        assert b'"error"' in seen
        assert outcome(app, "complete") is None


async def test_a_stream_that_finished_without_done_is_complete(engine):  # case 4 e
    async def script(request, wire):
        wire.write(head(**STREAM) + chunk(delta("a")) + chunk(delta("", "stop")) + LAST)

    engine.script = script
    async with gateway_for(engine.url) as app:
        seen = await raw_call(app, {**BODY, "stream": True})
        assert seen.endswith(b"0\r\n\r\n")
        assert outcome(app, "complete") == 1


async def test_an_error_event_inside_200_passes_and_is_booked_as_one(engine):  # case 7
    async def script(request, wire):
        broken = event({"error": {"message": "q", "code": 503}})
        wire.write(head(**STREAM) + chunk(broken + b"data: [DONE]\n\n") + LAST)

    engine.script = script
    async with gateway_for(engine.url) as app:
        seen = await raw_call(app, {**BODY, "stream": True})
        assert b'{"message": "q", "code": 503}' in seen
        assert outcome(app, "upstream_error") == 1


@pytest.mark.parametrize(
    ("status", "body", "booked"),
    [
        ("422 Unprocessable", b'{"detail": "temperature"}', "engine_refused"),
        ("400 Bad Request", b'{"error": {"message": "q"}}', "engine_refused"),
        ("500 Internal Server Error", b'{"detail": "q"}', "upstream_error"),
    ],
)
async def test_an_engines_own_refusal_is_not_booked_as_its_failure(
    engine, http, status, body, booked
):
    async def script(request, wire):
        wire.write(head(status, length=len(body)) + body)

    engine.script = script
    async with gateway_for(engine.url) as app:
        reply = await http.post(app.data_url + "/v1/chat/completions", json=BODY)
        assert reply.status == int(status[:3])
        assert await reply.read() == body
        await asyncio.sleep(0.05)  # the record comes after the answer
        assert outcome(app, booked) == 1


async def test_a_cut_whole_answer_is_a_502(engine, http):
    async def script(request, wire):
        wire.write(head(length=5000) + b'{"choices"')
        wire.close()

    engine.script = script
    async with gateway_for(engine.url) as app:
        reply = await http.post(app.data_url + "/v1/chat/completions", json=BODY)
        assert reply.status == 502
        assert (await reply.json())["error"]["code"] == "upstream_error"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("when", ["prefill", "midway"])
async def test_a_client_that_leaves_frees_the_engine(engine, stream, when):  # case 9
    async def script(request, wire):
        if when == "midway":
            wire.write(head(**STREAM) + chunk(delta("a")))
        await asyncio.sleep(30)

    engine.script = script
    async with gateway_for(engine.url) as app:
        _, writer = await begin(app, {**BODY, "stream": stream})
        await until(lambda: engine.received)
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await until(lambda: engine.received[0].closed.is_set() and not app.handler.in_flight)
        assert outcome(app, "client_gone") == 1


async def test_drain_lets_the_engine_finish_what_a_client_left(engine):  # sglang #24527
    finished = asyncio.Event()

    async def script(request, wire):
        await asyncio.sleep(0.3)
        wire.write(answer(json.dumps(CHAT).encode()))
        await asyncio.sleep(0.1)
        if not request.closed.is_set():
            finished.set()

    engine.script = script
    async with gateway_for(engine.url, backend={"on_disconnect": "drain"}) as app:
        _, writer = await begin(app, BODY)
        await until(lambda: engine.received)
        writer.transport.abort()
        await until(finished.is_set)


async def test_an_engine_that_breaks_off_under_drain_is_no_error_of_ours(engine, http, caplog):
    async def script(request, wire):
        wire.close()

    engine.script = script
    async with gateway_for(engine.url, backend={"on_disconnect": "drain"}) as app:
        async with http.post(app.data_url + "/v1/chat/completions", json=BODY) as reply:
            assert reply.status == 502
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []


async def test_a_kept_connection_is_told_to_move_on_while_the_gateway_drains(engine, http):
    go_on = asyncio.Event()

    async def script(request, wire):
        if request.json.get("stream"):
            await go_on.wait()
        wire.write(answer(json.dumps(CHAT).encode()))

    engine.script = script
    async with gateway_for(engine.url) as app:
        url = app.data_url + "/v1/chat/completions"
        async with http.post(url, json=BODY) as reply:
            assert "Connection" not in reply.headers
            await reply.read()
        _, writer = await begin(app, {**BODY, "stream": True})  # what the drain waits for
        await until(lambda: app.handler.in_flight)
        async with asyncio.timeout(PATIENCE):
            draining = asyncio.ensure_future(app.drain())
            await asyncio.sleep(0)
            async with http.post(url, json=BODY) as reply:
                assert (reply.status, reply.headers["Connection"]) == (200, "close")
            go_on.set()
            assert await draining
        writer.close()


async def test_connections_survive_cancels_and_answers_never_cross(engine, http):  # case 46
    async def script(request, wire):
        await asyncio.sleep(0.01)
        name = request.json["messages"][0]["content"]
        body = {
            **CHAT,
            "choices": [{"index": 0, "message": {"content": name}, "finish_reason": "stop"}],
        }
        wire.write(answer(json.dumps(body).encode()))

    engine.script = script

    async def call(app, name):
        body = {**BODY, "messages": [{"role": "user", "content": name}]}
        async with http.post(app.data_url + "/v1/chat/completions", json=body) as reply:
            return (await reply.json())["choices"][0]["message"]["content"]

    async with gateway_for(engine.url) as app:
        for number in range(200):
            task = asyncio.ensure_future(call(app, f"lost {number}"))
            await asyncio.sleep((number % 15) / 1000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        names = [f"kept {number}" for number in range(20)]
        assert await asyncio.gather(*(call(app, name) for name in names)) == names


@pytest.mark.parametrize("fault", ["close", "abort", "garbage"])
async def test_a_post_is_never_sent_twice(engine, http, fault):  # case 48
    async def script(request, wire):
        if fault == "garbage":
            wire.write(b"nonsense\r\n\r\n")
        getattr(wire, "abort" if fault == "abort" else "close")()

    engine.script = script
    async with gateway_for(engine.url) as app:
        reply = await http.post(app.data_url + "/v1/chat/completions", json=BODY)
        assert reply.status == 502
        assert len(engine.received) == 1


@pytest.mark.parametrize(
    ("timeouts", "named"), [({"first_byte": "200ms"}, "first byte"), ({"idle": "200ms"}, "idle")]
)
async def test_each_deadline_is_named(engine, http, timeouts, named):  # case 53
    async def script(request, wire):
        if named == "idle":
            wire.write(head(length=5000) + b'{"choices"')
        await asyncio.sleep(30)

    engine.script = script
    async with gateway_for(engine.url, timeouts=timeouts) as app:
        reply = await http.post(app.data_url + "/v1/chat/completions", json=BODY)
        assert reply.status == 504
        assert named in (await reply.json())["error"]["message"]
        await asyncio.wait_for(engine.received[0].closed.wait(), PATIENCE)


async def test_an_engine_that_is_gone_is_a_503(http):
    async with RawEngine().running() as engine, gateway_for(engine.url) as app:
        engine._server.close()
        for connection in engine.connections:
            connection.end()
        await asyncio.sleep(0.05)
        reply = await http.post(app.data_url + "/v1/chat/completions", json=BODY)
        assert (reply.status, (await reply.json())["error"]["code"]) == (
            503,
            "upstream_unavailable",
        )
        assert reply.headers["Retry-After"]


async def test_redirects_are_passed_on_and_never_followed(engine, http):  # case 67
    async def script(request, wire):
        wire.write(head("307 Temporary Redirect", length=0, more=[f"Location: {engine.url}/x"]))

    engine.script = script
    async with gateway_for(engine.url) as app:
        reply = await http.post(
            app.data_url + "/v1/chat/completions", json=BODY, allow_redirects=False
        )
        assert reply.status == 307
        assert len(engine.received) == 1


async def test_chunks_without_choices_pass_and_the_last_usage_counts(engine):  # case 5
    async def script(request, wire):
        events = [
            event({"choices": [], "usage": {"prompt_tokens": 5}}),
            event({"choices": None}),
            event({"usage": None}),
            event({"usage": {"prompt_tokens": 9}}),
            delta("a", "stop"),
        ]
        wire.write(head(**STREAM) + b"".join(map(chunk, events)))
        wire.write(chunk(b"data: [DONE]\n\n") + LAST)

    engine.script = script
    async with gateway_for(engine.url) as app:
        wants = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
        seen = await raw_call(app, wants)
        assert seen.count(b"data: ") == 6
        assert outcome(app, "complete") == 1


async def test_an_answer_without_end_is_a_502_and_let_go(engine, http, monkeypatch):
    """One that is no stream is held until it is judged, so what is held is bounded."""
    monkeypatch.setattr(relay, "MOST_HELD", 2**20)

    async def script(request, wire):
        wire.write(head(chunked=True))
        while not wire.is_closing():
            wire.write(chunk(b" " * 60_000))
            await asyncio.sleep(0.001)

    engine.script = script
    async with gateway_for(engine.url) as app:
        reply = await http.post(app.data_url + "/v1/chat/completions", json=BODY)
        assert reply.status == 502
        assert (await reply.json())["error"]["code"] == "upstream_error"
        await asyncio.wait_for(engine.received[0].closed.wait(), PATIENCE)
