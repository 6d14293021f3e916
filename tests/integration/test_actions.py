"""What a finding does: the answer withheld, asked for elsewhere, the backend taken out."""

from __future__ import annotations

import asyncio
import hmac
import json
from contextlib import asynccontextmanager
from hashlib import sha256
from io import BytesIO

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, head
from gateway.app import App
from gateway.edge import webhook
from gateway.edge.access_log import AccessLog
from gateway.settings import NoSecrets, parse
from gateway.simulate import INSTANT, Faults, SimulateSettings
from integration.conftest import gateway_and_engine, gateway_for, raw_call
from integration.test_checks import LEAKY, checked, raw_post, sample, settled, words

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
LONG = {**BODY, "messages": [{"role": "user", "content": "word " * 600}]}
OTHER = "req_" + "0" * 32  # the id of some other request


@asynccontextmanager
async def gateway_of(*engines, log=None, **more):
    """One backend an engine, named a, b, c..."""
    app = App(access_log=AccessLog(log) if log else None)
    backends = [
        {"name": name, "url": engine.url, "calibration": {"every": "0s"}}
        | {"tokenizer": "poolgate-tiny"}
        for name, engine in zip("abc", engines, strict=False)
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


# --- binding ------------------------------------------------------------------------------------


CALLS = [
    ("/v1/chat/completions", BODY),
    ("/v1/completions", {"model": "m", "prompt": "hello", "max_tokens": 4}),
    ("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 4}}),
    ("/v1/responses", {"model": "m", "input": "hello", "max_output_tokens": 4}),
]


def id_in(text):
    """The answer's id, wherever the dialect has it."""
    first = text.split(b"data: ")[1].splitlines()[0] if b"data: " in text else text
    value = json.loads(first)
    value = value.get("response", value)
    return value.get("id") or value["meta_info"]["id"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), CALLS)
async def test_every_swapped_answer_is_withheld(path, body, stream):
    sim = SimulateSettings(timing=INSTANT, faults=Faults(swap=True))
    async with gateway_and_engine(sim) as live:
        calls = [live.post(path, {**body, "stream": stream}) for _ in range(20)]
        replies = await asyncio.gather(*calls)
        swapped = [reply for reply in replies if reply[0] == 502]
        assert len(swapped) == 20  # all were under way at once, so all changed places
        for _, _, text in swapped:
            assert json.loads(text)["error"]["code"] == "response_withheld"
        alone = await live.post(path, {**body, "stream": stream})
        assert alone[0] == 200
        assert CIMultiDict(alone[1])["x-request-id"] in id_in(alone[2])
        assert checked(live.app, "binding", "leak") == 20
        await settled(live.app, "binding", 1)
        assert checked(live.app, "binding", "ok") == 1


async def test_an_echo_that_ceases_is_found():
    fast = {"limit": {"refresh": "20ms"}}
    async with RawEngine().running() as engine, gateway_for(engine.url, backend=fast) as app:

        async def echo(request, wire):
            wire.write(answer(json.dumps({**CHAT, "id": request.json["rid"]}).encode()))

        assert (await raw_post(app, BODY))[0] == 200  # never echoed: nothing is claimed
        engine.script = echo
        assert (await raw_post(app, BODY))[0] == 200
        engine.script = engine.answer_chat
        assert (await raw_post(app, BODY))[0] == 502
        [incident] = app.recorder.incidents
        assert incident["finding"]["reason"] == "id_lost"
        assert incident["evidence"] == "strong"
        engine.info = {"version": "0.5.24"}  # another process, which may be another engine
        async with asyncio.timeout(5):
            while (await raw_post(app, BODY))[0] != 200:
                await asyncio.sleep(0.05)


async def test_a_swapped_stream_is_cut_before_its_first_event():
    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True))
        event = delta("foreign words").replace(b'"x"', json.dumps(OTHER).encode())
        for at in range(0, len(event), 7):  # the id comes in pieces
            wire.write(chunk(event[at : at + 7]))
            await asyncio.sleep(0)
        wire.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with RawEngine().running() as engine, gateway_for(engine.url) as app:
        engine.script = script
        seen = await raw_call(app, {**BODY, "stream": True})
        assert b" 502 " in seen.splitlines()[0]
        assert b"foreign" not in seen


# --- completeness -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), CALLS[:3])
async def test_an_empty_success_is_an_error_to_the_client(path, body, stream):
    sim = SimulateSettings(timing=INSTANT, faults=Faults(empty200=True))
    async with gateway_and_engine(sim) as live:
        seen = await raw_call(live.app, {**body, "stream": stream}, path)
        failed = b" 502 " in seen.splitlines()[0]
        assert failed or not seen.endswith(b"0\r\n\r\n")
        assert b"[DONE]" not in seen
        assert b"response_withheld" in seen or b"upstream_error" in seen


@pytest.mark.parametrize("stream", [True, False])
async def test_a_completed_response_without_tokens_is_only_counted(stream):
    sim = SimulateSettings(timing=INSTANT, faults=Faults(empty200=True))
    path, body = CALLS[3]
    async with gateway_and_engine(sim) as live:
        assert (await live.post(path, {**body, "stream": stream}))[0] == 200
        await settled(live.app, "completeness")
        assert checked(live.app, "completeness", "mismatch") == 1
        assert not len(live.app.recorder.incidents)


@pytest.mark.parametrize(("action", "status"), [("flag", 200), ("block", 502)])
async def test_the_action_decides_whether_it_is(action, status):
    integrity = {"completeness": {"action": action}}
    async with RawEngine().running() as engine, gateway_for(engine.url, integrity=integrity) as app:
        engine.script = EMPTY
        assert (await raw_post(app, BODY))[0] == status
        [incident] = app.recorder.incidents
        assert (incident["kind"], incident["withheld"]) == ("completeness", status == 502)


# --- cached tokens ------------------------------------------------------------------------------


KEYS = {
    "tenants": [{"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in "ab"]
}


def story(number, count=400):
    return " ".join(f"chapter{number} line{n} tells of a{n * 7}" for n in range(count))


async def tell(live, tenant, text, **more):
    body = {**BODY, "messages": [{"role": "user", "content": text}], **more}
    return await live.post("/v1/chat/completions", body, headers={"x-api-key": tenant})


async def learnt(live):
    """Enough prompts of new text for the engine's reports to be believed."""
    for number in range(17):
        assert (await tell(live, "a", story(number, 60)))[0] == 200


ROOMY = {"timing": INSTANT, "context": 65_536, "prefill_pool": 65_536, "decode_pool": 65_536}


@pytest.mark.parametrize("stream", [True, False])
async def test_pages_of_another_tenant_show_in_cached_tokens(stream):
    sim = SimulateSettings(faults=Faults(salt=True), **ROOMY)
    integrity = {"cached_tokens": {"action": "block"}}
    async with gateway_and_engine(sim, integrity=integrity, **KEYS) as live:
        await learnt(live)
        secret = story("x")
        assert (await tell(live, "a", secret))[0] == 200
        assert (await tell(live, "a", secret + " and on"))[0] == 200  # its own pages
        try:
            status, _, _ = await tell(live, "b", secret, stream=stream)
            assert status == 502
        except aiohttp.ClientPayloadError:
            assert stream  # its end was withheld
        [incident] = live.app.recorder.incidents
        assert incident["kind"] == "cached_tokens"
        assert incident["evidence"] == "certain"
        assert incident["finding"]["returned"] > incident["finding"]["expected"]
        assert "chapter" not in json.dumps(incident)


@pytest.mark.parametrize("faults", [Faults(), Faults(cache_silent=True)])
async def test_an_engine_that_keeps_tenants_apart_or_says_so_is_not_accused(faults):
    integrity = {"cached_tokens": {"action": "block"}}
    sim = SimulateSettings(faults=faults, **ROOMY)
    async with gateway_and_engine(sim, integrity=integrity, **KEYS) as live:
        await learnt(live)
        for _ in range(2):
            for tenant in "ab":
                assert (await tell(live, tenant, story("x")))[0] == 200
        assert not len(live.app.recorder.incidents)
        await settled(live.app, "cached_tokens", 21)
        assert checked(live.app, "cached_tokens", "ok") == 21


@pytest.mark.parametrize(
    "changed", [{"salt_secret": "sixteen characters"}, {"cache_salt": "off"}], ids=str
)
async def test_nothing_is_claimed_where_others_may_share_the_salt(changed):
    async with gateway_and_engine(
        SimulateSettings(faults=Faults(salt=True), **ROOMY), backend=changed, **KEYS
    ) as live:
        await learnt(live)
        for tenant in "ab":
            assert (await tell(live, tenant, story("x")))[0] == 200
        for verdict in ("ok", "leak", "unverifiable"):
            assert checked(live.app, "cached_tokens", verdict) == 0


async def test_plain_prompts_may_hold_what_chats_render_so_their_tenant_is_not_judged():
    sim = SimulateSettings(faults=Faults(salt=True), **ROOMY)
    async with gateway_and_engine(sim, **KEYS) as live:
        await learnt(live)
        prompt = {"model": "m", "prompt": "raw", "max_tokens": 1}
        await live.post("/v1/completions", prompt, headers={"x-api-key": "b"})
        for tenant in "ab":
            assert (await tell(live, tenant, story("x")))[0] == 200
        await settled(live.app, "cached_tokens", 19)
        assert checked(live.app, "cached_tokens", "leak") == 0
        assert checked(live.app, "cached_tokens", "unverifiable") == 1


# --- another backend ----------------------------------------------------------------------------


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


async def test_other_errors_are_not_asked_for_again():
    async def broken(request, wire):
        wire.abort()

    async with two_engines() as (one, other), gateway_of(one, other) as app:
        one.script = broken
        assert (await raw_post(app, BODY))[0] == 502
        assert other.received == []


# --- quarantine ---------------------------------------------------------------------------------


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
        for lesson in range(24):
            body = {**words(4_500 + lesson * 50, lesson), "stream": True}
            assert (await live.post("/v1/chat/completions", body))[0] == 200
        backend = live.app.generation.runtime.backends[0]
        await settled(live.app, count=24)
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


# --- incidents ----------------------------------------------------------------------------------


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


# --- webhook ------------------------------------------------------------------------------------


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


async def until(holds):
    async with asyncio.timeout(8):
        while not holds():
            await asyncio.sleep(0.01)


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
    hanging = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}/hook"
    integrity = {"webhook": {"url": url, "secret": SECRET}}
    try:
        async with RawEngine().running() as engine:
            async with gateway_for(engine.url, integrity=integrity) as app:
                engine.script = SWAPPED
                async with asyncio.timeout(2):
                    for _ in range(5):
                        assert (await raw_post(app, BODY))[0] == 502
    finally:
        hanging.close()
