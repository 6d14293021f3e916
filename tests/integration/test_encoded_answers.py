"""Row 11: an answer's headers describe its bytes, and what was not scanned is not called clean."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from fakes.raw_engine import CHAT, answer, chunk, delta, head
from framings import BODY, SIZE, ask, chat, sized
from integration.conftest import gateway_for

PLAIN = json.dumps(CHAT).encode()
ENCODED = {
    "gzip": gzip.compress(PLAIN),
    "deflate": zlib.compress(PLAIN),
    "gzip, gzip": gzip.compress(gzip.compress(PLAIN)),
    "br": b"\x0b\x02\x80" + PLAIN[:8] + b"\x03",  # as opaque here as in truth
    "zstd": b"\x28\xb5\x2f\xfd" + PLAIN[:9],
    "x-own": PLAIN[::-1],
}


def unscanned(app):
    """Verdicts of checks that looked at an answer's text, by what they say."""
    lines = app.metrics.render().decode().splitlines()
    told = [line for line in lines if line.startswith("poolgate_checks_total{")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in told}


def took(app, before, verdict):
    after = unscanned(app)
    grown = {name for name, count in after.items() if count > before.get(name, 0)}
    return {name for name in grown if f'verdict="{verdict}"' in name}


@pytest.mark.parametrize("coding", ENCODED)
async def test_row_11_an_encoded_answer_keeps_its_bytes_and_headers(engine, coding):
    body = ENCODED[coding]

    async def script(request, wire):
        wire.write(answer(body, more=[f"Content-Encoding: {coding}", "Vary: Accept-Encoding"]))

    engine.script = script
    async with gateway_for(engine.url) as app:
        before = unscanned(app)
        raw = sized(SIZE, b"Accept-Encoding: gzip, br, zstd", b"Connection: close")
        seen = await ask(app.servers.data_port, raw)
        told, _, got = seen.raw.partition(b"\r\n\r\n")
        assert seen.statuses == [200]
        assert got == body
        headers = [line.lower() for line in told.decode().split("\r\n")]
        assert f"content-encoding: {coding}" in headers
        assert f"content-length: {len(body)}" in headers
        assert took(app, before, "unverifiable")
        assert not [name for name in took(app, before, "ok") if "prompt_tokens" in name]
        assert not [name for name in took(app, before, "ok") if "completeness" in name]
    assert engine.received[0].header("Accept-Encoding") == ["identity"]


async def test_row_11_an_encoded_stream_likewise(engine):
    events = delta("a") + delta("b", "stop") + b"data: [DONE]\n\n"
    body = gzip.compress(events)

    async def script(request, wire):
        more = ["Content-Encoding: gzip"]
        wire.write(head(kind="text/event-stream", chunked=True, more=more))
        wire.write(chunk(body[:20]) + chunk(body[20:]) + chunk(b""))

    engine.script = script
    streaming = json.dumps({**json.loads(chat("m")), "stream": True}).encode()
    async with gateway_for(engine.url) as app:
        before = unscanned(app)
        raw = sized(b"%d" % len(streaming), b"Connection: close", body=streaming)
        seen = await ask(app.servers.data_port, raw)
        told, _, rest = seen.raw.partition(b"\r\n\r\n")
        assert b"content-encoding: gzip" in told.lower()
        assert b"content-length" not in told.lower()
        assert gzip.decompress(_dechunked(rest)) == events
        assert took(app, before, "unverifiable")


def _dechunked(raw):
    out = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size, 16)
        out, raw = out + raw[:length], raw[length + 2 :]
        if not length:
            break
    return out


async def test_row_11_an_engine_that_is_asked_for_identity_gives_it(engine):
    async with gateway_for(engine.url) as app:
        raw = sized(SIZE, b"Accept-Encoding: gzip", b"Connection: close", body=BODY)
        seen = await ask(app.servers.data_port, raw)
    assert b"content-encoding" not in seen.raw.lower()
    assert json.loads(seen.raw.partition(b"\r\n\r\n")[2]) == CHAT
