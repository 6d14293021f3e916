"""Sentinels end to end: placed, counted, scrubbed, and caught in another tenant's answer."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import asynccontextmanager
from hashlib import sha256

import aiohttp
import pytest

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, event, head
from gateway.core.lexicon import lexicon
from gateway.core.sentinel import Sentinels
from gateway.edge.sentinels import PREAMBLE
from gateway.simulate import INSTANT, Faults, SimulateSettings
from integration.conftest import gateway_and_engine, gateway_for
from sentinels import NOW, normal
from waiting import until

SECRET = "sixteen characters at least"
TENANTS = [
    {"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in ("ann", "bob")
]
CHAT_PATH, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USAGE = {"prompt_tokens": 150, "completion_tokens": 9, "total_tokens": 159}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 400}


def phrase(tenant):
    cluster = Sentinels([SECRET.encode()], 86400.0, 259200.0, [])
    return lexicon().phrase(cluster.numbers(tenant, NOW))


IDS = {"binding": {"action": "off"}}  # else no two requests are alike
ANN, BOB = phrase("ann"), phrase("bob")


@pytest.fixture(autouse=True)
def no_epoch_ends(monkeypatch):
    """Else one does in some run, and a tenant has another marker from then on."""
    monkeypatch.setattr("gateway.edge.configured.wall_clock", lambda: NOW)


def options(**sentinel):
    return {"integrity": {"secret": SECRET, "sentinel": sentinel, **IDS}, "tenants": TENANTS}


@asynccontextmanager
async def gateway(limit=5000, backend=None, **sentinel):
    async with RawEngine(limit=limit, context=limit + 6).running() as engine:
        backend = {"cache_salt": "off", **(backend or {})}  # else tenants' requests differ by it
        async with gateway_for(engine.url, backend=backend, **options(**sentinel)) as app:
            yield engine, app


async def ask(app, body, path=CHAT_PATH, tenant="ann"):
    """Status and body as ``tenant`` sees them; a stream that is cut ends where it is cut."""
    headers = {"Authorization": f"Bearer {tenant}", "Content-Type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as http,
        http.post(app.data_url + path, data=data, headers=headers) as reply,
    ):
        seen = b""
        try:
            async for part in reply.content.iter_any():
                seen += part
        except aiohttp.ClientError:
            seen += b"<cut>"
        return reply.status, seen


def sample(app, name, **labels):
    return app.metrics.registry.get_sample_value(name, labels) or 0


async def verdicts(app, verdict, count=1, check="sentinel"):
    await until(lambda: sample(app, "poolgate_checks_total", check=check, verdict=verdict) >= count)


def saying(text):
    """A script: the whole answer, or a stream of three letters an event."""
    reply = {
        **CHAT,
        "usage": USAGE, "choices": [{"index": 0, "message": {"role": "assistant", "content": text},
                                  "finish_reason": "stop"}]}  # fmt: skip

    async def script(request, wire):
        if not request.json.get("stream"):
            wire.write(answer(json.dumps(reply).encode()))
            return
        wire.write(head(chunked=True, kind="text/event-stream"))
        for at in range(0, len(text), 3):
            wire.write(chunk(delta(text[at : at + 3])))
            if at == 0:
                await asyncio.sleep(0.05)  # so that something is released
        wire.write(
            chunk(delta("", "stop")) + chunk(event({"id": "x", "choices": [], "usage": USAGE}))
        )
        wire.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    return script


def content(stream):
    """The text a client puts together from a stream."""
    values = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for value in values for choice in json.loads(value).get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


# --- placed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "find"),
    [
        (CHAT_PATH, HELLO, lambda sent: sent["messages"][0]),
        (
            CHAT_PATH,
            {**HELLO, "messages": [{"role": "system", "content": "Be kind."}, *HELLO["messages"]]},
            lambda sent: sent["messages"][0],
        ),
        (
            CHAT_PATH,
            {**HELLO, "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]}]},
            lambda sent: sent["messages"][0]["content"][-1],
        ),
        (RESPONSES, {"model": "m", "input": "hello"}, lambda sent: sent),
        (RESPONSES, {"model": "m", "input": "hello", "instructions": "Kind."}, lambda sent: sent),
        (
            RESPONSES,
            {"model": "m", "input": [{"role": "system", "content": "Be kind."}]},
            lambda sent: sent["input"][0],
        ),
        (MESSAGES, HELLO, lambda sent: sent),
        (MESSAGES, {**HELLO, "system": "Be kind."}, lambda sent: sent),
        (
            MESSAGES,
            {**HELLO, "system": [{"type": "text", "text": "Be kind."}]},
            lambda sent: sent["system"][-1],
        ),
    ],
)  # fmt: skip
async def test_the_tenants_sentinel_ends_the_system_message(path, body, find):
    async with gateway() as (engine, app):
        await ask(app, body, path)
        await ask(app, body, path)
        await ask(app, body, path, "bob")

    first, again, other = (request.json for request in engine.received)
    held = find(first)
    text = next(
        held[name] for name in ("text", "system", "instructions", "content") if name in held
    )
    assert text.endswith(PREAMBLE.lstrip() + ANN)
    assert first["messages" if "messages" in first else "input"] is not None
    assert again == first
    assert json.dumps(other) == json.dumps(first).replace(ANN, BOB)
    assert sample(app, "poolgate_sentinel_markers_total", outcome="placed") == 3


async def test_every_other_byte_of_the_request_survives():
    raw = (
        b'{ "model" : "m", "messages":[{"content":"Be k\\u0069nd.\\/" , "role":"system","x":1.0e2},'
        b'{"role":"user","content":"\\ud83d\\ude00 hi", "odd" : null}], "max_tokens":4, "y":0.10}'
    )
    async with gateway() as (engine, app):
        await ask(app, raw)

    body = engine.received[0].body
    marker = json.dumps(PREAMBLE + ANN)[1:-1].encode()
    assert body.count(marker) == 1
    given = [part.strip(b" {}") for part in raw.split(b",")]
    sent = body.replace(marker, b"")
    for part in given:
        assert part.replace(b" : ", b":").replace(b' "odd"', b'"odd"') in sent.replace(b" : ", b":")


@pytest.mark.parametrize(
    ("path", "body", "outcome"),
    [
        ("/v1/completions", {"model": "m", "prompt": "hello"}, "no_place"),
        ("/generate", {"model": "m", "text": "hello"}, "no_place"),
        ("/v1/embeddings", {"model": "m", "input": "hello"}, None),
        (CHAT_PATH, {**HELLO, "response_format": {"type": "json_object"}}, "constrained"),
        (CHAT_PATH, {**HELLO, "guided_regex": "a+"}, "constrained"),
        (RESPONSES, {"model": "m", "input": "x", "text": {"format": {"type": "json_schema"}}},
         "constrained"),
    ],
)  # fmt: skip
async def test_where_it_would_do_harm_there_is_none(path, body, outcome):
    async with gateway() as (engine, app):
        await ask(app, body, path)

    assert ANN not in engine.received[0].body.decode()
    if outcome:
        assert sample(app, "poolgate_sentinel_markers_total", outcome=outcome) == 1


async def test_constrained_answers_may_be_marked_too():
    async with gateway(constrained=True) as (engine, app):
        await ask(app, {**HELLO, "response_format": {"type": "json_object"}})

    assert ANN in engine.received[0].body.decode()


@pytest.mark.parametrize("setting", [{"place": "off"}, {"action": "off"}])
async def test_it_can_be_left_out(setting):
    async with gateway(**setting) as (engine, app):
        await ask(app, HELLO)

    assert ANN not in engine.received[0].body.decode()


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT_PATH, HELLO), (RESPONSES, {"model": "m", "input": "hello"}), (MESSAGES, HELLO)],
)
async def test_the_marked_request_is_what_is_counted(path, body):
    sim = SimulateSettings(timing=INSTANT)
    async with gateway_and_engine(sim, **options()) as live:
        headers = {"Authorization": "Bearer ann"}
        status, answered, _ = await live.post(path, body, headers=headers)
        assert status == 200
        await verdicts(live.app, "ok", check="prompt_tokens")
        await verdicts(live.app, "ok")
        marked = int(answered["x-poolgate-prompt-tokens"])
    async with gateway_and_engine(sim) as plain:
        _, answered, _ = await plain.post(path, body)
        assert marked > int(answered["x-poolgate-prompt-tokens"]) + 8


async def test_counting_tells_what_will_be_charged():
    sim = SimulateSettings(timing=INSTANT)
    async with gateway_and_engine(sim, **options()) as live:
        headers = {"Authorization": "Bearer ann"}
        _, _, counted = await live.post(MESSAGES + "/count_tokens", HELLO, headers=headers)
        _, answered, _ = await live.post(MESSAGES, HELLO, headers=headers)
        assert json.loads(counted)["input_tokens"] == int(answered["x-poolgate-prompt-tokens"])


async def test_a_prompt_that_fits_only_without_it_goes_without_it():
    async with gateway(limit=60) as (engine, app):
        status, _ = await ask(app, {**HELLO, "messages": [{"role": "user", "content": "a " * 40}]})
        assert status == 200
        assert ANN not in engine.received[0].body.decode()
        assert sample(app, "poolgate_sentinel_markers_total", outcome="no_room") == 1

        status, seen = await ask(
            app, {**HELLO, "messages": [{"role": "user", "content": "a " * 90}]}
        )
        assert status == 400
        assert b"context_length_exceeded" in seen
        assert len(engine.received) == 1


async def test_a_template_that_takes_no_system_message_gets_none():
    async with gateway(backend={"tokenizer": "engine"}) as (engine, app):
        engine.counts = lambda asked: None if ANN in json.dumps(asked) else 10
        status, _ = await ask(app, HELLO)

        assert status == 200
        assert ANN not in engine.received[0].body.decode()
        assert sample(app, "poolgate_sentinel_markers_total", outcome="not_countable") == 1


# --- echoed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_an_echo_of_ones_own_is_scrubbed(stream):
    async with gateway() as (engine, app):
        engine.script = saying(f"My tag is {ANN.upper()}, I think.")
        status, seen = await ask(app, {**HELLO, "stream": stream})
        await verdicts(app, "ok")

    text = content(seen) if stream else json.loads(seen)["choices"][0]["message"]["content"]
    assert status == 200
    assert normal(text) in ("my tag is i think", f"my tag is {ANN[:2]} i think")
    assert not stream or seen.endswith(b"data: [DONE]\n\n")


async def test_the_instructions_of_a_response_come_back_as_they_were():
    async def script(request, wire):
        response = {
            "id": "resp_1", "object": "response", "status": "completed",
            "instructions": request.json["instructions"],
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
            "usage": {"input_tokens": 30, "output_tokens": 1, "total_tokens": 31},
        }  # fmt: skip
        wire.write(answer(json.dumps(response).encode()))

    async with gateway() as (engine, app):
        engine.script = script
        _, seen = await ask(
            app, {"model": "m", "input": "hello", "instructions": "Be kind."}, RESPONSES
        )

    assert json.loads(seen)["instructions"] == "Be kind."


async def test_an_engines_error_that_quotes_the_prompt_is_scrubbed():
    async def script(request, wire):
        error = {"error": {"message": "bad: " + request.json["messages"][0]["content"]}}
        wire.write(answer(json.dumps(error).encode(), status="400 Bad Request"))

    async with gateway() as (engine, app):
        engine.script = script
        status, seen = await ask(app, HELLO)

    assert status == 400
    assert json.loads(seen) == {"error": {"message": "bad: "}}


# --- leaked -----------------------------------------------------------------------------------

LEAK = "Certainly. " + BOB.replace(" ", "\n- ") + " and Bob's secret plan."


async def test_a_stream_with_anothers_is_cut():
    async with gateway() as (engine, app):
        engine.script = saying(LEAK)
        status, seen = await ask(app, {**HELLO, "stream": True})
        await verdicts(app, "leak")
        [incident] = app.recorder.incidents

    assert status == 200
    before, _, rest = seen.partition(b'data: {"error"')
    assert f"Certainly. {BOB[:3]}".startswith(content(before))
    assert content(before)
    assert b'"code":"response_withheld"' in rest
    assert b"[DONE]" not in seen
    assert seen.endswith(b"<cut>")
    assert not set(BOB.split()) & set(normal(seen.decode()).split())
    assert b"secret plan" not in seen
    assert incident["kind"] == "sentinel"
    assert incident["finding"]["reason"] == "foreign"
    assert incident["bytes_released"] == len(before)
    assert incident["source"] is not None
    assert "bob" not in json.dumps(incident).lower()
    assert not set(BOB.split()) & set(normal(json.dumps(incident)).split())


async def test_a_whole_answer_with_anothers_is_withheld():
    async with gateway() as (engine, app):
        engine.script = saying(LEAK)
        status, seen = await ask(app, HELLO)
        await verdicts(app, "leak")

    assert status == 502
    assert json.loads(seen)["error"]["code"] == "response_withheld"
    assert b"secret plan" not in seen


@pytest.mark.parametrize("stream", [True, False])
async def test_flagged_it_passes_without_the_marker(stream):
    async with gateway(action="flag") as (engine, app):
        engine.script = saying(LEAK)
        status, seen = await ask(app, {**HELLO, "stream": stream})
        await verdicts(app, "leak")

    assert status == 200
    text = content(seen) if stream else seen.decode()
    assert "secret plan" in text
    assert BOB.split()[4] not in text
    assert len(app.recorder.incidents) == 1


async def test_quarantine_puts_the_backend_under_suspicion():
    async with gateway(action="quarantine") as (engine, app):
        engine.script = saying(LEAK)
        assert (await ask(app, HELLO))[0] == 502
        [backend] = app.handler.runtime.backends

        assert str(backend.standing.state) == "suspect"


@pytest.mark.parametrize("stream", [True, False])
async def test_one_the_client_sent_itself_may_come_back(stream):
    said = f"You wrote: {BOB}."
    async with gateway() as (engine, app):
        engine.script = saying(said)
        quoting = {**HELLO, "messages": [{"role": "user", "content": f"Say {BOB.title()}!"}]}
        status, seen = await ask(app, {**quoting, "stream": stream})
        await verdicts(app, "ok")

    text = content(seen) if stream else json.loads(seen)["choices"][0]["message"]["content"]
    assert (status, text) == (200, said)
    assert not app.recorder.incidents


async def test_with_an_image_in_the_prompt_it_is_unconfirmed():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with gateway(backend={"limit": {"when_uncountable": "allow"}}) as (engine, app):
        engine.script = saying(LEAK)
        status, _ = await ask(app, {**HELLO, "messages": [{"role": "user", "content": [image]}]})
        [incident] = app.recorder.incidents

    assert status == 502
    assert incident["finding"]["reason"] == "unconfirmed"
    assert incident["evidence"] == "strong"


async def test_a_piece_of_anothers_is_told_and_nothing_more():
    async with gateway() as (engine, app):
        engine.script = saying("I see " + " ".join(BOB.split()[1:7]) + " here.")
        status, _ = await ask(app, HELLO)
        await verdicts(app, "mismatch")

    assert status == 200
    assert not app.recorder.incidents


async def test_a_compressed_answer_is_unverifiable():
    async def script(request, wire):
        body = gzip.compress(json.dumps(CHAT).encode())
        wire.write(answer(body, more=("Content-Encoding: gzip",)))

    async with gateway() as (engine, app):
        engine.script = script
        await ask(app, HELLO)
        await verdicts(app, "unverifiable")


async def test_a_share_of_the_answers_may_be_scanned():
    async with gateway(scan=0.0) as (engine, app):
        engine.script = saying(LEAK)
        status, _ = await ask(app, HELLO)
        await verdicts(app, "ok", check="completeness")

        assert status == 200
        assert sample(app, "poolgate_checks_total", check="sentinel", verdict="leak") == 0


async def test_another_cluster_does_not_know_ours():
    async with RawEngine(limit=5000).running() as engine:
        integrity = {"sentinel": {}}  # a secret of its own, random
        async with gateway_for(engine.url, integrity=integrity, tenants=TENANTS) as app:
            engine.script = saying(LEAK)
            status, _ = await ask(app, HELLO)
            await verdicts(app, "ok")

    assert status == 200


async def test_after_a_rotation_both_secrets_count():
    integrity = {"secret": "a newer secret of ours", "old_secrets": [SECRET], "sentinel": {}}
    async with RawEngine(limit=5000).running() as engine:
        async with gateway_for(engine.url, integrity=integrity, tenants=TENANTS) as app:
            engine.script = saying(LEAK)
            status, _ = await ask(app, HELLO)

    assert status == 502
    assert ANN not in engine.received[0].body.decode()


async def test_the_incident_shows_in_the_marker():
    """Prompts over the prefill pool, answered from pages that still hold others' prompts."""
    sim = SimulateSettings(
        timing=INSTANT,
        context=16_384,
        prefill_pool=1_024,
        decode_pool=3_072,
        page_size=16,
        prefix_cache=False,
        faults=Faults(to_finish=True, server_info=True),
        mean_answer=400.0,
    )
    long = {**HELLO, "messages": [{"role": "user", "content": "word " * 650}]}
    withheld = 0
    async with gateway_and_engine(sim, **options()) as live:
        for turn in range(30):
            for _ in range(12):
                assert (await ask(live.app, {**HELLO, "max_tokens": 4}, tenant="bob"))[0] == 200
            _, seen = await ask(live.app, {**long, "stream": turn % 2 == 0})
            withheld += b"response_withheld" in seen
            assert normal(BOB) not in normal(seen.decode())
        leaked = sum(truth.leaked for truth in live.engine.truths.values())

        assert sample(live.app, "poolgate_checks_total", check="sentinel", verdict="leak") > 0
        assert 0 < withheld <= leaked
