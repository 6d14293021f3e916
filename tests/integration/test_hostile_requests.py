"""What a client may send to be read in two ways, to be believed, or to make noise: raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from hashlib import sha256

import pytest

from fakes.raw_engine import CHAT, answer
from framings import BODY, SECOND, SIZE, ask, request, sized
from gateway.dialects.unambiguous import MOST_NESTED
from integration.conftest import gateway_for
from integration.test_serve import served
from waiting import PATIENCE

KEY = "pgk_secret-A"
TENANTS = {
    "tenants": [{"id": "a", "key_sha256": [sha256(KEY.encode()).hexdigest()], "policy": "p"}],
    "policies": {"p": {}},
}
CLOSE = b"Connection: close"
JSON = b"Content-Type: application/json"
PATHS = {
    "/v1/chat/completions": '"messages":[{"role":"user","content":"hi"}]',
    "/v1/completions": '"prompt":"hi"',
    "/v1/responses": '"input":"hi"',
    "/v1/embeddings": '"input":"hi"',
    "/v1/messages": '"max_tokens":5,"messages":[{"role":"user","content":"hi"}]',
    "/generate": '"text":"hi"',
}
CHAT_MEMBERS = PATHS["/v1/chat/completions"]


def post(body, *headers, path="/v1/chat/completions"):
    body = body if isinstance(body, bytes) else body.encode()
    line = f"POST {path} HTTP/1.1\r\n".encode()
    return sized(b"%d" % len(body), CLOSE, *headers, body=body, line=line)


async def refused(app, raw, status, code="invalid_request", param=None):
    """The one clear refusal that comes back."""
    seen = await ask(app.servers.data_port, raw)
    assert seen.statuses == [status], seen.raw
    error = json.loads(seen.raw.partition(b"\r\n\r\n")[2])["error"]
    if "code" in error:  # Anthropic's shape has none
        assert error["code"] == code
        assert error["param"] == param
    return error["message"]


# --- bodies that parsers read differently -----------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_name_twice_is_refused_and_named_in_every_dialect(engine, path):
    async with gateway_for(engine.url) as app:
        for name, members in {
            "model": '"model":"m","model":"other",' + PATHS[path],
            "stream": '"model":"m","stream":false,"str\\u0065am" : true,' + PATHS[path],
            "content": '"model":"m","messages":[{"role":"user","content":"a","content":"b"}],'
            + PATHS[path].replace('"messages"', '"x"'),
        }.items():
            message = await refused(app, post("{" + members + "}", path=path), 400, param=name)
            assert f"'{name}' is there twice" in message
    assert engine.received == []


async def test_bodies_that_are_no_strict_json_are_refused(engine):
    whole = '{"model":"m",' + CHAT_MEMBERS + "}"
    deep = "[" * MOST_NESTED + "]" * MOST_NESTED
    async with gateway_for(engine.url) as app:
        for body in (
            b"\xef\xbb\xbf" + whole.encode(),
            whole.encode("utf-16"),
            whole.encode("utf-32-le"),
            whole.replace("hi", "\u00e9").encode("latin-1"),
            whole + "\0",
            whole + whole,
            whole.replace("hi", "\\ud800"),
            whole.replace("hi", "a\nb"),
            '{"model":"m","x":' + deep + "," + CHAT_MEMBERS + "}",
            '{"model":"m","x":NaN,' + CHAT_MEMBERS + "}",
            '{"model":"m","x":1e999,' + CHAT_MEMBERS + "}",
            "// note\n" + whole,
        ):
            seen = await ask(app.servers.data_port, post(body))
            assert seen.statuses == [400], body
            assert b'"invalid_request"' in seen.raw
    assert engine.received == []


@pytest.mark.parametrize(
    ("content_type", "taken"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ('application/json;charset="UTF-8"', True),
        ("text/plain", True),
        ("application/json; charset=utf-16", False),
        ('application/json; charset="latin-1"', False),
        ("application/json; Charset = cp1252", False),
        ("application/json; charset=utf-8; charset=utf-7", False),
        ("application/json; charset*=utf-8''utf-7", False),
    ],
)
async def test_another_charset_than_utf_8_is_a_415(engine, content_type, taken):
    async with gateway_for(engine.url) as app:
        seen = await ask(
            app.servers.data_port, post(BODY, b"Content-Type: " + content_type.encode())
        )
    assert seen.statuses == [200 if taken else 415]
    assert len(engine.received) == taken


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ('"Messages":[{"role":"user","content":"a much longer one"}]', "Messages"),
        ('"MODEL":"other"', "MODEL"),
        ('"me\u017f\u017fages":[]', "me\u017f\u017fages"),  # a long s folds to s
        ('"messages":[{"role":"user","content":"a","Content":"b"}]', "Content"),
        ('"messages":[{"role":"user","content":[{"type":"text","text":"a","Text":"b"}]}]', "Text"),
    ],
)
async def test_an_engine_that_folds_names_gets_none_to_fold(engine, members, param):
    async def probe(question, wire):
        loaded = {"models": [{"name": "m", "model": "m", "context_length": 1024}]}
        path = question.line.split()[1]
        wire.write(answer(json.dumps(loaded if path == "/api/ps" else {"version": "1"}).encode()))

    engine.probe = probe
    named = {"engine": "ollama", "limit": {"allow_truncating_engine": True}}
    chat = CHAT_MEMBERS if "messages" not in members else '"x":1'
    own = '"metadata":{"Content":"of the client"}'
    async with gateway_for(engine.url, backend=named) as app:
        body = '{"model":"m",' + f"{chat},{members}" + "}"
        await refused(app, post(body), 400, param=param)
        assert engine.received == []
        fine = '{"model":"m",' + f"{CHAT_MEMBERS},{own}" + "}"
        assert (await ask(app.servers.data_port, post(fine))).statuses == [200]
    async with gateway_for(engine.url, backend={"engine": "openai", "limit": OWN}) as app:
        body = '{"model":"m",' + f'{CHAT_MEMBERS},"Messages":[]' + "}"
        assert (await ask(app.servers.data_port, post(body))).statuses == [200]


OWN = {"max_prompt_tokens": 1000, "when_unknown": "allow"}


# --- headers ----------------------------------------------------------------------------------


async def test_heads_that_are_too_large_are_a_431(engine):
    many = [b"X-%d: a" % number for number in range(129)]
    async with gateway_for(engine.url) as app:
        for raw in (
            sized(SIZE, *many),
            sized(SIZE, b"X: " + b"a" * 8191),
            sized(SIZE, b"X" * 8191 + b": a"),
            sized(SIZE, line=b"POST /v1/chat/completions?" + b"a" * 8191 + b" HTTP/1.1\r\n"),
        ):
            await refused(app, raw, 431, "headers_too_large")
        fitting = [*many[:120], b"X: " + b"a" * 8000, CLOSE]
        assert (await ask(app.servers.data_port, sized(SIZE, *fitting))).statuses == [200]
    assert len(engine.received) == 1


async def test_nominated_headers_go_no_further_either_way(engine):
    async def script(received, wire):
        body = json.dumps(CHAT).encode()
        kept = ["Connection: keep-alive, X-Hop", "X-Hop: 1", "X-H: 2", "Keep-Alive: 5", "Hop: 3"]
        wire.write(answer(body, more=kept))

    engine.script = script
    nominated = b"Connection: traceparent, Anthropic-Version,authorization, close"
    sent = [nominated, b"traceparent: 00-1", b"tracestate: b", b"anthropic-version: 1", JSON]
    async with gateway_for(engine.url, backend={"api_key": "engine-key"}) as app:
        seen = await ask(app.servers.data_port, sized(SIZE, *sent))
    [received] = engine.received
    assert received.header("tracestate") == ["b"]
    assert received.header("traceparent") == received.header("anthropic-version") == []
    assert received.header("authorization") == ["Bearer engine-key"]
    assert b"X-H: 2" in seen.raw
    assert b"Hop: 3" in seen.raw
    assert b"X-Hop" not in seen.raw
    assert b"Keep-Alive" not in seen.raw


async def test_underscores_make_no_header_of_ours(engine):
    async with gateway_for(engine.url, **TENANTS) as app:
        for header in (f"x_api_key: {KEY}", f"X-Api_Key: {KEY}", f"Authorization_: Bearer {KEY}"):
            await refused(app, post(BODY, header.encode()), 401, "invalid_api_key")
        odd = [
            b"x-api-key: " + KEY.encode(),
            b"Content_Type: a",
            b"Content_Length: 1",
            b"User_Agent: x",
        ]
        assert (await ask(app.servers.data_port, post(BODY, *odd))).statuses == [200]
    [received] = engine.received
    assert not [name for name, _ in received.headers if "_" in name]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([b"x-api-key: wrong", b"Content-Length: 10"], 401),
        ([b"Content-Length: 10"], 401),
        ([b"x-api-key: " + KEY.encode(), b"Content-Length: 999999999"], 413),
        ([b"x-api-key: " + KEY.encode(), b"Content-Length: 9", b"Content-Encoding: gzip"], 415),
        ([b"x-api-key: " + KEY.encode(), b"Content-Length: 9", b"Transfer-Encoding: chunked"], 400),
    ],
)
async def test_nobody_is_told_to_go_on_before_key_and_length_are_seen(engine, headers, status):
    async with gateway_for(engine.url, **TENANTS) as app:
        raw = request(b"Expect: 100-continue", CLOSE, *headers, body=b"")
        seen = await ask(app.servers.data_port, raw, patience=1.0)
        assert seen.statuses == [status]
        assert b"100 Continue" not in seen.raw
    assert engine.received == []


async def test_who_may_is_told_to_go_on(engine):
    async with gateway_for(engine.url, **TENANTS) as app:
        raw = sized(SIZE, b"Expect: 100-continue", b"x-api-key: " + KEY.encode(), CLOSE)
        at = len(raw) - len(BODY)
        seen = await ask(app.servers.data_port, raw[:at], raw[at:], pause=0.1)
        assert seen.statuses == [100, 200]
    assert len(engine.received) == 1


async def test_a_body_that_comes_while_the_gateway_drains_is_still_read(engine):
    async with gateway_for(engine.url) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.servers.data_port)
        raw = sized(SIZE)
        writer.write(raw[:60])
        await asyncio.sleep(0.05)
        app.handler.draining = True
        writer.write(raw[60:-20])
        await asyncio.sleep(0.1)
        writer.write(raw[-20:] + SECOND)
        seen = await asyncio.wait_for(reader.read(), PATIENCE)
        assert seen.count(b"HTTP/1.1 200") == 1  # and the connection has ended
        writer.close()
    assert [received.json["model"] for received in engine.received] == ["first"]


# --- noise ------------------------------------------------------------------------------------


async def test_no_client_can_flood_the_log_or_forge_a_line_of_it(engine):
    """Two hundred each of broken heads, wrong keys, unknown paths and clients that hang up."""
    forged = b"POST /\x0aERROR%20forged%0aERROR%20forged HTTP/1.1\r\nHost: x\r\n\r\n"
    async with served("--backend", engine.url, "--no-access-log") as (process, url, _):
        port = int(url.rpartition(":")[2])
        for _ in range(50):
            await asyncio.gather(
                *(ask(port, raw, patience=1.0) for raw in (b"BROKEN\r\n\r\n", forged, post("{"))),
                _hang_up(port),
            )
        process.terminate()
        _, written = await asyncio.wait_for(process.communicate(), PATIENCE)
    lines = written.decode().splitlines()
    assert len(lines) < 12, lines
    assert not [line for line in lines if "forged" in line]


async def _hang_up(port):
    with contextlib.suppress(ConnectionError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sized(SIZE)[:-5])
        await asyncio.sleep(0.01)
        writer.transport.abort()
