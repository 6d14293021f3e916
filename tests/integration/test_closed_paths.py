"""Only inference paths are forwarded, compared as sent (cases 42, 44, 51, 54, 64, 66, 67)."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256

import aiohttp
import pytest

from integration.conftest import gateway_for
from waiting import PATIENCE

CONTROL = """
/flush_cache /abort_request /set_internal_state /pd_role_switch /open_session /close_session
/update_weights /update_weights_from_disk /update_weights_from_tensor /pause_generation
/continue_generation /hicache/clear /dumper/x /slow_down /release_memory_occupation
/resume_memory_occupation /v1/load_lora_adapter /v1/unload_lora_adapter /load_lora_adapter
/reset_prefix_cache /reset_mm_cache /sleep /wake_up /pause /resume /is_sleeping /collective_rpc
/scale_elastic_ep /invocations /server_info /get_server_info /model_info /metrics /start_profile
/stop_profile /slots/0?action=erase /slots /props /lora-adapters /models/load /workers
/list_workers /docs /openapi.json /redoc /health /tokenize /detokenize /v1/tokenize /version
/vertex_generate /generate_from_file /encode /classify /score /rerank /pooling /infill
/completion /embedding /api/chat /api/generate /api/ps /api/pull /api/delete
/v1/audio/transcriptions
/v1/files /v1/batches /inference/v1/generate /v1/chat/completions/render /v1/loads /get_load
/ /v1 /favicon.ico
""".split()

SPELLINGS = """
/v1/%2e%2e/flush_cache /v1/..%2fflush_cache /v1/../flush_cache //v1/chat/completions
/v1/chat%2Fcompletions /x%255Fy /V1/models /V1/chat/completions /v1/chat/completions/
/v1//chat/completions /v1/chat/completions;a=1 /v1/chat/completions%00 /./v1/chat/completions
/v1/chat/completions/../../../flush_cache /generate/ /Generate http://x/v1/chat/completions
http://x/flush_cache *
""".split()

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()


async def send(app, method, target, *, headers=(), body=BODY):
    """Send a target exactly as spelt; the status line's code."""
    reader, writer = await asyncio.open_connection("127.0.0.1", app.servers.data_port)
    lines = [
        f"{method} {target} HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    seen = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    return int(seen.split()[1]), seen


async def test_no_control_path_reaches_the_engine_by_any_method(engine):
    async with gateway_for(engine.url) as app:
        calls = [
            send(app, method, path)
            for path in CONTROL
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")
        ]
        for begin in range(0, len(calls), 50):
            for status, _ in await asyncio.gather(*calls[begin : begin + 50]):
                assert status == 404
    assert engine.received == []


@pytest.mark.parametrize("target", SPELLINGS)
async def test_no_spelling_of_a_path_gets_past_the_exact_match(engine, target):
    async with gateway_for(engine.url) as app:
        status, _ = await send(app, "POST", target)
        assert status in (400, 404)
    assert engine.received == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "CONNECT"])
async def test_an_inference_path_takes_post_only(engine, method):
    async with gateway_for(engine.url) as app:
        status, _ = await send(app, method, "/v1/chat/completions")
        assert status in (400, 404)
        override = ["X-HTTP-Method-Override: POST"]
        status, _ = await send(app, "GET", "/v1/chat/completions", headers=override)
        assert status == 404
    assert engine.received == []


async def test_the_query_passes_byte_for_byte(engine):
    async with gateway_for(engine.url) as app:
        await send(app, "POST", "/v1/chat/completions?a=%2B+%20&b=%c3%a9")
    assert engine.received[0].line == "POST /v1/chat/completions?a=%2B+%20&b=%c3%a9 HTTP/1.1"


async def test_headers_that_steer_or_identify_stay_here(engine):
    hostile = [
        "X-Forwarded-For: 6.6.6.6",
        "Forwarded: for=6",
        "Via: x",
        "X_Tenant: b",
        "X-Tenant-Id: b",
        "Cookie: a=1",
        "Cookie: b=2",
        "Authorization: Bearer LEAKMARK",
        "x-api-key: LEAKMARK",
        "X-Request-Id: mine",
        "X-Data-Parallel-Rank: 3",
        "X-SGLang-Foo: 1",
        "X-Internal: 1",
        "Proxy-Authorization: x",
        "TE: trailers",
        "anthropic-version: 2023-06-01",
        "Content-Type: application/json",
    ]
    async with gateway_for(engine.url, backend={"api_key": "engine-key"}) as app:
        await send(app, "POST", "/v1/chat/completions", headers=hostile)
    names = {name.lower() for name, _ in engine.received[0].headers}
    assert names == {
        "host",
        "content-type",
        "content-length",
        "accept-encoding",
        "x-request-id",
        "authorization",
        "anthropic-version",
    }
    assert engine.received[0].header("Authorization") == ["Bearer engine-key"]
    assert engine.received[0].header("X-Request-Id")[0].startswith("req_")


async def test_an_upgrade_is_an_ordinary_request(engine):  # case 42
    headers = [
        "Connection: Upgrade, X-Internal, Authorization",
        "Upgrade: websocket",
        "X-Internal: 1",
    ]
    async with gateway_for(engine.url) as app:
        await send(app, "POST", "/v1/chat/completions", headers=headers)
    for request in engine.received:
        assert not request.header("Upgrade")
        assert not request.header("X-Internal")


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "gzip, gzip", "x"])
async def test_compressed_bodies_are_refused_before_they_are_read(engine, encoding):  # case 51
    async with gateway_for(engine.url) as app:
        status, _ = await send(
            app, "POST", "/v1/chat/completions", headers=[f"Content-Encoding: {encoding}"]
        )
        assert status == 415
    assert engine.received == []


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_over_the_bound_is_a_413(engine, chunked):
    big = b'{"model":"m","messages":[{"role":"user","content":"' + b"a" * 20_000 + b'"}]}'
    async with gateway_for(engine.url, body={"max_bytes": 10_000}) as app:
        async with aiohttp.ClientSession() as http:

            async def pieces():
                yield big[:9_000]
                yield big[9_000:]

            data = pieces() if chunked else big
            reply = await http.post(app.data_url + "/v1/chat/completions", data=data)
            assert reply.status == 413
            assert (await reply.json())["error"]["code"] == "request_too_large"
    assert engine.received == []


async def test_a_body_that_never_comes_ends_by_the_deadline(engine):
    async with gateway_for(engine.url, timeouts={"body": "200ms"}) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.servers.data_port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
        )
        seen = await asyncio.wait_for(reader.readuntil(b"}}"), PATIENCE)
        assert seen.startswith(b"HTTP/1.1 400")
        writer.close()
    assert engine.received == []


KEY, OTHER = "pgk_secret-A", "pgk_secret-B"
TENANTS = {
    "tenants": [
        {"id": "a", "key_sha256": [sha256(KEY.encode()).hexdigest()], "policy": "p"},
        {"id": "b", "key_sha256": [sha256(OTHER.encode()).hexdigest()], "policy": "p"},
    ],
    "policies": {"p": {"models": ["m*"], "max_prompt_tokens": 500}},
}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([f"Authorization: Bearer {KEY}"], 200),
        ([f"Authorization: bearer {KEY}"], 200),
        ([f"Authorization: BEARER  {KEY}"], 200),
        ([f"x-api-key: {KEY}"], 200),
        ([f"x-api-key: {KEY}", f"Authorization: Bearer {KEY}"], 200),
        ([], 401),
        (["Authorization: Bearer"], 401),
        (["Authorization: Bearer "], 401),
        ([f"Authorization: Bearer {KEY},Bearer {OTHER}"], 401),
        ([f"Authorization: Bearer {KEY}", f"Authorization: Bearer {OTHER}"], 401),
        ([f"x-api-key: {OTHER}", f"Authorization: Bearer {KEY}"], 401),
        (["Authorization: Bearer kä"], 401),
        (["Authorization: Basic " + KEY], 401),
        (["Authorization: Bearer " + "k" * 6000], 401),
        (["Authorization: Bearer wrong"], 401),
    ],
)
async def test_keys(engine, headers, status):  # cases 65, 66
    async with gateway_for(engine.url, **TENANTS) as app:
        got, seen = await send(app, "POST", "/v1/chat/completions", headers=headers)
        assert got == status
        assert b"secret" not in seen
        if status == 401:
            assert b"WWW-Authenticate: Bearer" in seen
    assert len(engine.received) == (status == 200)


async def test_a_model_the_policy_does_not_name_is_a_403_and_an_unserved_one_a_404(engine):
    headers = [f"x-api-key: {KEY}"]
    other = BODY.replace(b'"m"', b'"x"')
    async with gateway_for(engine.url, **TENANTS) as app:
        status, seen = await send(app, "POST", "/v1/chat/completions", headers=headers, body=other)
        assert status == 403
        assert b"model_not_allowed" in seen
    async with gateway_for(engine.url, backend={"models": ["m"]}) as app:
        status, seen = await send(app, "POST", "/v1/chat/completions", body=other)
        assert status == 404
        assert b"model_not_found" in seen
    assert engine.received == []


async def test_models_are_listed_with_the_limit_that_holds(engine):
    async with gateway_for(engine.url, **TENANTS) as app:
        status, seen = await send(app, "GET", "/v1/models", headers=[f"x-api-key: {KEY}"], body=b"")
        assert status == 200
        [card] = json.loads(seen.partition(b"\r\n\r\n")[2])["data"]
        assert (card["id"], card["max_model_len"]) == ("m", 500)
        status, _ = await send(app, "GET", "/v1/models", body=b"")
        assert status == 401
