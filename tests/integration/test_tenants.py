"""Keys and their ends, buckets by key alone, live use, and trouble with the store."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import aiohttp
import pytest

from fakes.raw_engine import RawEngine
from gateway.app import App
from gateway.cli.main import main
from integration.conftest import begin, gateway_for, settings_for
from valkey_server import server
from waiting import PATIENCE, own_clock, until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
CHAT = "/v1/chat/completions"


def hashed(key):
    return sha256(key.encode()).hexdigest()


def of_keys(keys, policy, **more):
    """Tenants by name, each with its keys, under one policy."""
    listed = [{"id": name, "key_sha256": each, "policy": "p"} for name, each in keys.items()]
    return {"tenants": listed, "policies": {"p": policy}, **more}


async def post(app, key, headers=(), body=BODY):
    """The status, the headers and the body a key gets."""
    sent = {"x-api-key": key, "Content-Type": "application/json", **dict(headers)}
    async with aiohttp.ClientSession() as http:
        async with http.post(app.data_url + CHAT, json=body, headers=sent) as reply:
            return reply.status, reply.headers, await reply.read()


async def admin(app, path):
    async with aiohttp.ClientSession() as http:
        async with http.get(app.admin_url + path) as reply:
            return reply.status, await reply.read()


async def status(app):
    return json.loads((await admin(app, "/status"))[1])


@pytest.fixture(scope="module")
def valkey():
    with server() as running:
        yield running


# --- keys ---------------------------------------------------------------------------------------


async def test_a_key_that_is_replaced_ends_and_the_new_one_goes_on(engine):
    """As long as both are good they are one tenant: they share its quotas."""

    def moment(seconds):
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()

    keys = [
        {"sha256": hashed("old"), "not_after": moment(-1).replace("+00:00", "Z")[:19] + "Z"},
        {"sha256": hashed("ending"), "not_after": moment(3600)[:19] + "Z"},
        {"sha256": hashed("early"), "not_before": moment(3600)[:19] + "Z"},
        hashed("new"),
    ]
    policy = {"requests_per_minute": 3}
    async with gateway_for(engine.url, **of_keys({"a": keys}, policy)) as app:
        for key, why in (("old", b"has expired"), ("early", b"not valid yet")):
            got, headers, text = await post(app, key)
            assert got == 401
            assert why in text
            assert headers["WWW-Authenticate"] == "Bearer"
        assert [(await post(app, key))[0] for key in ("ending", "new", "ending")] == [200] * 3
        assert (await post(app, "new"))[0] == 429
    assert len(engine.received) == 3


async def test_a_reload_ends_a_key_and_keeps_what_was_counted(engine):
    policy = {"requests_per_minute": 2}
    async with gateway_for(engine.url, **of_keys({"a": [hashed("k1")]}, policy)) as app:
        assert (await post(app, "k1"))[0] == 200
        before = app.generation.runtime.limiting
        await app.reload(settings_for(engine.url, **of_keys({"a": [hashed("k2")]}, policy)))
        assert app.generation.runtime.limiting is before
        assert (await post(app, "k1"))[0] == 401
        assert [(await post(app, "k2"))[0] for _ in range(2)] == [200, 429]


async def test_another_store_begins_anew_and_the_old_one_hears_what_ended_late(engine, valkey):
    go_on = asyncio.Event()

    async def slow(request, wire):
        await go_on.wait()
        await engine.answer_chat(request, wire)

    def under(**limits):
        return of_keys({"a": [hashed("k")]}, {"concurrent": 1}, limits=limits)

    engine.script = slow
    with valkey.client() as client:
        client.flushall()
    async with gateway_for(engine.url, **under(store=valkey.url, timeout="5s")) as app:
        old = app.generation.runtime.limiting
        running = asyncio.create_task(post(app, "k"))
        await until(lambda: engine.received)
        await app.reload(settings_for(engine.url, **under(store="memory")))
        assert app.generation.runtime.limiting is not old
        go_on.set()
        assert (await post(app, "k"))[0] == 200
        assert (await running)[0] == 200
        await until(lambda: not old.leases.busy)
        assert not any("concurrent" in key and value for key, value in valkey.keys().items())


# --- row 40: whose bucket -----------------------------------------------------------------------


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_row_40_the_bucket_is_the_keys_whatever_else_a_client_sends(engine, valkey, store):
    with valkey.client() as client:
        client.flushall()
    limits = {"store": valkey.url if store == "redis" else "memory", "timeout": "5s"}
    tenants = of_keys({"a": [hashed("k")], "b": [hashed("j")]}, {"requests_per_minute": 4})
    tries = [
        ({"X-Forwarded-For": "10.0.0.1"}, {}),
        ({"X-Tenant-Id": "b", "X_Tenant": "b"}, {"user": "one"}),
        ({"Forwarded": "for=10.0.0.2", "OpenAI-Organization": "b"}, {"user": "two"}),
        ({"X-Real-IP": "10.0.0.3"}, {"metadata": {"user_id": "b"}, "safety_identifier": "b"}),
        ({"Cookie": "tenant=b"}, {"user": "three"}),
    ]
    async with gateway_for(engine.url, **tenants, limits=limits) as app:
        got = [(await post(app, "k", headers, {**BODY, **more}))[0] for headers, more in tries]
        assert got == [200, 200, 200, 200, 429]
        assert (await post(app, "j"))[0] == 200


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_row_40_names_that_look_alike_are_different_tenants(engine, valkey, store):
    with valkey.client() as client:
        client.flushall()
    limits = {"store": valkey.url if store == "redis" else "memory", "timeout": "5s"}
    names = ["a", "A", "a.b", "a-b", "a_b", "a.b-c", "a-b.c"]
    tenants = of_keys({name: [hashed(name)] for name in names}, {"requests_per_minute": 1})
    async with gateway_for(engine.url, **tenants, limits=limits) as app:
        assert [(await post(app, name))[0] for name in names] == [200] * len(names)
        assert [(await post(app, name))[0] for name in names] == [429] * len(names)


# --- row 65: the key is nowhere -----------------------------------------------------------------


async def test_row_65_no_key_and_no_text_reaches_the_store(engine, valkey):
    with valkey.client() as client:
        client.flushall()
    quotas = {
        "requests_per_minute": 9,
        "tokens_per_minute": 9999,
        "concurrent": 9,
        "per_model": {"*": {"requests_per_minute": 9, "concurrent": 9}},
    }
    go_on = asyncio.Event()

    async def slow(request, wire):
        await go_on.wait()
        await engine.answer_chat(request, wire)

    engine.script = slow
    limits = {"store": valkey.url, "timeout": "5s"}
    tenants = of_keys({"t": [hashed("LEAKMARK-key")]}, quotas, limits=limits)
    message = [{"role": "user", "content": "LEAKMARK-text"}]
    body = {**BODY, "model": "LEAKMARK-model", "messages": message, "user": "LEAKMARK"}
    async with gateway_for(engine.url, **tenants) as app:
        assert (await post(app, "LEAKMARK-wrong"))[0] == 401
        calls = [asyncio.create_task(post(app, "LEAKMARK-key", body=body)) for _ in range(3)]
        await until(lambda: len(engine.received) >= 3)
        held = valkey.keys()
        go_on.set()
        await asyncio.gather(*calls)
        told = str(await status(app)) + str(await admin(app, "/metrics"))
        kept = str(held) + str(valkey.keys())
        assert held
        for secret in ("LEAKMARK", hashed("LEAKMARK-key")):
            assert secret not in kept
            assert secret not in told


@pytest.mark.parametrize(
    "value", [b"Bearer k\x00", b"Bearer " + b"k" * 65536, b"Bearer \xff\xfe", b"Bearer k\x7f"]
)
async def test_row_66_what_no_parser_takes_is_no_key_either(engine, value):
    tenants = of_keys({"a": [hashed("k")]}, {})
    async with gateway_for(engine.url, **tenants) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.servers.data_port)
        payload = json.dumps(BODY).encode()
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n".encode()
            + (b"Connection: close\r\nAuthorization: " + value + b"\r\n\r\n" + payload)
        )
        seen = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        assert seen.split()[1] in (b"400", b"401", b"431")
    assert engine.received == []


# --- row 67: what a body may not steer ----------------------------------------------------------


async def test_row_67_no_member_of_a_body_and_no_url_in_it_leads_anywhere(engine):
    async with RawEngine().running() as canary, gateway_for(engine.url) as app:
        steering = dict.fromkeys(("api_base", "base_url", "url", "endpoint", "proxy"), canary.url)
        got, _, _ = await post(app, "", body={**BODY, **steering, "api_key": "sk-x"})
        assert got == 200
        assert engine.received[-1].header("Authorization") == []
        for url in (canary.url + "/x.png", "http://169.254.169.254/", "file:///etc/passwd"):
            for kind in ("image_url", "video_url", "audio_url"):
                parts = [{"type": kind, kind: {"url": url}}]
                message = [{"role": "user", "content": parts}]
                assert (await post(app, "", body={**BODY, "messages": message}))[0] == 400
        assert (canary.received, canary.probes) == ([], 0)
        assert len(engine.received) == 1


# --- live use -----------------------------------------------------------------------------------


@asynccontextmanager
async def busy_gateway(engine, **more):
    """Tenant ``a`` with two requests under way and one done, ``b`` idle."""
    go_on = asyncio.Event()

    async def slow(request, wire):
        await go_on.wait()
        await engine.answer_chat(request, wire)

    keys = {"b": [hashed("LEAKMARK-b")], "a": [hashed("LEAKMARK-a")]}
    policy = {"requests_per_minute": 10, "concurrent": 4, "per_model": {"m*": {"concurrent": 3}}}
    async with gateway_for(engine.url, **of_keys(keys, policy, **more)) as app:
        assert (await post(app, "LEAKMARK-a"))[0] == 200
        engine.script = slow
        calls = [asyncio.create_task(post(app, "LEAKMARK-a")) for _ in range(2)]
        await until(lambda: len(engine.received) >= 3)
        yield app
        go_on.set()
        await asyncio.gather(*calls)


async def test_status_tells_what_each_tenant_uses(engine):
    async with busy_gateway(engine) as app:
        told = await status(app)
        assert told["limits"] == {"store": "memory", "up": True, "when_store_fails": "refuse"}
        assert told["tenants"]["left_out"] == 0
        first, second = told["tenants"]["shown"]
        assert (first["id"], first["in_flight"]) == ("a", 2)
        assert (second["id"], second["in_flight"]) == ("b", 0)
        uses = {(quota["name"], quota["models"]): quota["used"] for quota in first["quotas"]}
        assert uses == {
            ("requests per minute", None): 3,
            ("concurrent requests", None): 2,
            ("concurrent requests", "m*"): 2,
        }
        assert {quota["used"] for quota in second["quotas"]} == {0}
        assert "LEAKMARK" not in json.dumps(told)
        assert hashed("LEAKMARK-a") not in json.dumps(told)


async def test_tenants_top_shows_it(engine, capsys):
    async with busy_gateway(engine) as app:
        command = ["tenants", "top", "--admin", app.admin_url + "/"]
        assert await asyncio.to_thread(main, command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == [*"TENANT IN FLIGHT QUOTA USED LIMIT REMAINING FULL IN".split()]
        assert lines[1].split()[:6] == ["a", "2", "requests", "per", "minute", "3"]
        assert "concurrent requests for models m*" in lines[3]
        assert lines[4].split()[:2] == ["b", "0"]
        assert await asyncio.to_thread(main, [*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["shown"][0]["in_flight"] == 2


async def test_tenants_top_watches(engine):
    process = None
    async with busy_gateway(engine) as app:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway", "tenants", "top", "--json"),
                *("--admin", app.admin_url, "--watch", "0.05"),
                stdout=asyncio.subprocess.PIPE,
            )
            async with asyncio.timeout(PATIENCE):
                seen = [json.loads(await process.stdout.readline()) for _ in range(3)]
            assert [each["shown"][0]["id"] for each in seen] == ["a"] * 3
        finally:
            if process is not None:
                process.kill()
                await process.wait()


# --- the store's trouble, as operators see it ----------------------------------------------------


@pytest.mark.parametrize(("mode", "ready"), [("refuse", 503), ("allow", 200)])
async def test_row_36_a_frozen_store_is_seen_and_holds_nothing_up(engine, mode, ready):
    limits = {"timeout": "200ms", "when_store_fails": mode}
    with server() as own:
        keys = {"a": [hashed("k")]}
        tenants = of_keys(keys, {"requests_per_minute": 500}, limits={"store": own.url, **limits})
        async with gateway_for(engine.url, **tenants) as app:
            assert (await post(app, "k"))[0] == 200
            assert (await admin(app, "/readyz"))[0] == 200
            with own.frozen():
                assert (await post(app, "k"))[0] == ready
                for path, expected in (("/healthz", 200), ("/readyz", ready), ("/status", 200)):
                    async with own_clock() as clock:
                        got, text = await admin(app, path)
                        assert clock() < 2.0
                    assert got == expected
                    if path == "/readyz" and ready == 503:
                        [waiting] = json.loads(text)["waiting_for"]
                        assert waiting["store"] == own.url
                        assert "does not answer" in waiting["reason"]
                told = await status(app)
                assert told["limits"]["up"] is False
                assert told["tenants"]["shown"][0]["quotas"] is None
                metrics = (await admin(app, "/metrics"))[1].decode()
                assert "poolgate_limiter_store_up 0.0" in metrics
                outcome = "unavailable" if ready == 503 else "unchecked"
                assert f'poolgate_limiter_decisions_total{{outcome="{outcome}"}}' in metrics
            async with asyncio.timeout(PATIENCE):
                while not (await status(app))["limits"]["up"]:
                    await asyncio.sleep(0.05)
            assert (await post(app, "k"))[0] == 200
            assert (await admin(app, "/readyz"))[0] == 200
            assert b"poolgate_limiter_store_up 1.0" in (await admin(app, "/metrics"))[1]


async def test_row_76_the_gateway_starts_without_its_store_and_lives(engine):
    limits = {"store": "redis://127.0.0.1:1", "timeout": "200ms"}
    tenants = of_keys({"a": [hashed("k")]}, {"requests_per_minute": 500}, limits=limits)
    async with gateway_for(engine.url, **tenants) as app:
        assert (await admin(app, "/readyz"))[0] == 503  # known before anyone asks for anything
        got, headers, text = await post(app, "k")
        assert got == 503
        assert json.loads(text)["error"]["code"] == "limiter_store_unavailable"
        assert int(headers["Retry-After"]) >= 1
        assert (await admin(app, "/healthz"))[0] == 200
        assert (await admin(app, "/readyz"))[0] == 503
    assert engine.received == []


# --- the end ------------------------------------------------------------------------------------


async def test_draining_waits_until_the_store_was_told(engine, valkey):
    with valkey.client() as client:
        client.flushall()
    limits = {"store": valkey.url, "timeout": "5s"}
    policy = {"tokens_per_month": 100_000, "concurrent": 2}
    app = App()
    try:
        tenants = of_keys({"a": [hashed("k")]}, policy, limits=limits)
        await app.start(settings_for(engine.url, **tenants, drain="5s"))
        assert (await post(app, "k"))[0] == 200
        assert await app.drain()
        assert not app.generation.runtime.limiting.leases.busy
    finally:
        await app.stop()
    assert not valkey.without_end()


async def test_stopping_with_requests_under_way_gives_their_slots_back(engine, valkey):
    async def hangs(request, wire):
        await asyncio.sleep(30)

    with valkey.client() as client:
        client.flushall()
    engine.script = hangs
    limits = {"store": valkey.url, "timeout": "5s"}
    app = App()
    try:
        policies = {"default": {"concurrent": 3, "tokens_per_month": 100_000}}
        await app.start(settings_for(engine.url, policies=policies, limits=limits))
        clients = [await begin(app, BODY) for _ in range(3)]
        await until(lambda: len(engine.received) >= 3)
        assert any(isinstance(value, list) and value for value in valkey.keys().values())
    finally:
        await app.stop()
    for _, writer in clients:  # it was the gateway that ended, not they
        writer.close()
    assert not any(isinstance(value, list) and value for value in valkey.keys().values())
