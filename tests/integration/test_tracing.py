"""Exchanges as traces at a real OTLP receiver: what they hold, whose trace they are in, and what a
collector that fails costs.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time

import pytest
import trustme

from waiting import own_clock

pytest.importorskip("opentelemetry.sdk", reason="poolgate[otel] is not installed")

from fakes.collector import Collector, attributes
from fakes.raw_engine import CHAT, answer, chunk, delta, head
from gateway.edge import otel
from gateway.settings import SettingsError
from integration.conftest import gateway_for, raw_call, settings_for

SECRET_TEXT = "Zanzibar-" + "q" * 20
BODY = {"model": "m", "messages": [{"role": "user", "content": SECRET_TEXT}], "max_tokens": 7}
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KEY = "sk-a-key-of-the-tenant-0123456789"


@pytest.fixture
async def collector():
    async with Collector().running() as running:
        yield running


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(otel, "EVERY", 50.0)


def tracing(collector, **more):
    return {"telemetry": {"otlp": collector.url, "sample": 1.0, **more}}


async def ask(app, http, body=BODY, headers=None, path="/v1/chat/completions"):
    async with http.post(app.data_url + path, json=body, headers=headers) as response:
        return response.status, await response.read()


async def stream_two(request, wire):
    await asyncio.sleep(0.05)
    wire.write(head(chunked=True, kind="text/event-stream"))
    wire.write(chunk(delta("one ")))
    await asyncio.sleep(0.1)
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    last = json.dumps({"id": "x", "choices": [], "usage": usage}).encode()
    wire.write(chunk(delta("two", "stop")))
    wire.write(chunk(b"data: " + last + b"\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def counted(app, result):
    return app.metrics.registry.get_sample_value("poolgate_spans_total", {"result": result})


async def test_a_stream_is_one_trace_with_its_stages(engine, http, collector):
    engine.script = stream_two
    async with gateway_for(engine.url, **tracing(collector)) as app:
        assert (await ask(app, http, {**BODY, "stream": True}))[0] == 200
        spans = await collector.got(6)
    assert spans.keys() == {"chat m", "read", "count", "POST", "prefill", "stream"}
    whole, call = spans["chat m"], spans["POST"]
    assert whole.kind == whole.SPAN_KIND_SERVER
    assert call.kind == call.SPAN_KIND_CLIENT
    assert len({span.trace_id for span in spans.values()}) == 1
    assert not whole.parent_span_id
    assert {spans[name].parent_span_id for name in ("read", "count", "POST")} == {whole.span_id}
    assert {spans[name].parent_span_id for name in ("prefill", "stream")} == {call.span_id}
    for span in spans.values():
        assert whole.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= whole.end_time_unix_nano
    assert abs(whole.start_time_unix_nano / 1e9 - time.time()) < 30
    took = {
        name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        for name, span in spans.items()
    }
    assert took["prefill"] >= 0.045
    assert took["stream"] >= 0.095


async def test_the_attributes_are_the_conventions(engine, http, collector):
    engine.script = stream_two
    async with gateway_for(engine.url, **tracing(collector)) as app:
        await ask(app, http, {**BODY, "stream": True})
        spans = await collector.got(6)
        limit = engine.limit - 1
    told = attributes(spans["chat m"])
    ttft = told.pop("gen_ai.response.time_to_first_chunk")
    assert 0.045 <= ttft < 5
    assert told.pop("poolgate.request_id").startswith("req_")
    checks = {name: value for name, value in told.items() if name.startswith("poolgate.check.")}
    assert checks["poolgate.check.completeness"] == "ok"
    port = int(engine.url.rpartition(":")[2])
    rest = {name: value for name, value in told.items() if name not in checks}
    prompt_tokens, sent, size = (
        rest.pop(name)
        for name in ("poolgate.prompt_tokens", "poolgate.bytes_out", "poolgate.bytes_in")
    )
    assert prompt_tokens > 0
    assert sent > 0
    assert size > len(SECRET_TEXT)
    assert rest == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sglang",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "server.address": "127.0.0.1",
        "server.port": port,
        "poolgate.tenant": "default",
        "poolgate.backend": "sim",
        "poolgate.outcome": "complete",
        "poolgate.limit": limit,
    }
    assert attributes(spans["POST"]) == {
        "http.request.method": "POST",
        "url.full": f"{engine.url}/v1/chat/completions",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    [resource, *_] = collector.resources
    assert resource["service.name"] == "poolgate"
    assert resource["service.instance.id"]


async def test_no_text_no_key_and_no_header_of_a_client_is_in_a_trace(engine, http, collector):
    tenants = [{"id": "a", "key_sha256": [_sha256(KEY)]}]
    async with gateway_for(engine.url, tenants=tenants, **tracing(collector)) as app:
        headers = {"Authorization": f"Bearer {KEY}", "User-Agent": "agent-" + SECRET_TEXT}
        assert (await ask(app, http, headers=headers))[0] == 200
        assert (await ask(app, http, {**BODY, "messages": SECRET_TEXT}, headers))[0] == 400
        assert (await ask(app, http, path=f"/{SECRET_TEXT}?{SECRET_TEXT}", headers=headers))[
            0
        ] == 404
        await collector.got(6)
    assert b"poolgate.tenant" in collector.raw
    for hidden in (SECRET_TEXT, KEY, _sha256(KEY), "hello"):
        assert hidden.encode() not in collector.raw


async def test_a_refusal_says_which_and_has_no_call_to_an_engine(engine, http, collector):
    async with gateway_for(engine.url, **tracing(collector)) as app:
        long = {**BODY, "messages": [{"role": "user", "content": "word " * 3000}]}
        assert (await ask(app, http, long))[0] == 400
        spans = await collector.got(3)
    assert spans.keys() == {"POST /v1/chat/completions", "read", "count"}
    whole = spans["POST /v1/chat/completions"]
    told = attributes(whole)
    assert told["error.type"] == told["poolgate.outcome"] == "context_length_exceeded"
    assert told["http.response.status_code"] == 400
    assert whole.status.code == whole.status.STATUS_CODE_UNSET  # the client's fault
    assert engine.received == []


async def test_an_engine_that_breaks_off_is_an_error_of_both_spans(engine, http, collector):
    async def cut(request, wire):
        wire.write(head(chunked=True, kind="text/event-stream") + chunk(delta("one")))
        await asyncio.sleep(0.02)
        wire.close()

    engine.script = cut
    async with gateway_for(engine.url, **tracing(collector)) as app:
        await raw_call(app, {**BODY, "stream": True})
        spans = await collector.got(6)
    for name in ("chat m", "POST"):
        assert spans[name].status.code == spans[name].status.STATUS_CODE_ERROR
        assert attributes(spans[name])["error.type"] == "truncated"


async def test_what_engines_and_clients_write_is_cut_and_escaped(engine, http, collector):
    async def odd(request, wire):
        told = {"message": {"role": "assistant", "content": "x"}, "finish_reason": SECRET_TEXT}
        body = {"id": "x", "choices": [{"index": 0, **told}], "usage": {"prompt_tokens": 1}}
        wire.write(answer(json.dumps(body).encode()))

    engine.script = odd
    async with gateway_for(engine.url, **tracing(collector)) as app:
        await ask(app, http, {**BODY, "model": "m\n\u202e" + "x" * 1000})
        await collector.got(4)
    told = attributes(next(span for span in collector.spans if span.parent_span_id == b""))
    assert told["gen_ai.request.model"].startswith(r"m\n\u202exxx")
    assert len(told["gen_ai.request.model"]) < 150
    assert told["gen_ai.response.finish_reasons"] == ["other"]


async def test_a_usage_beyond_all_bounds_spoils_neither_record_nor_trace(engine, http, collector):
    async def boundless(request, wire):
        body = json.dumps({**CHAT, "usage": {"prompt_tokens": 10**400, "completion_tokens": 2**63}})
        wire.write(answer(body.encode()))

    engine.script = boundless
    async with gateway_for(engine.url, **tracing(collector)) as app:
        assert (await ask(app, http))[0] == 200
        spans = await collector.got(4)
    assert "gen_ai.usage.input_tokens" not in attributes(spans["chat m"])
    assert app.metrics.registry.get_sample_value(
        "poolgate_requests_total",
        {"dialect": "openai_chat", "backend": "sim", "tenant": "default", "outcome": "complete"},
    )


@pytest.mark.parametrize("trust", [True, False])
async def test_the_clients_trace_is_gone_on_with_only_where_it_is_trusted(
    engine, http, collector, trust
):
    settings = tracing(collector, trust_traceparent=trust)
    async with gateway_for(engine.url, **settings) as app:
        await ask(app, http, headers={"traceparent": CALLER, "tracestate": "vendor=1"})
        spans = await collector.got(4)
    [sent] = engine.received
    [parent] = sent.header("traceparent")
    assert parent.split("-")[2] == spans["POST"].span_id.hex()
    assert parent.split("-")[1] == spans["chat m"].trace_id.hex()
    caller_trace, caller_span = CALLER.split("-")[1:3]
    assert (spans["chat m"].trace_id.hex() == caller_trace) is trust
    assert (spans["chat m"].parent_span_id.hex() == caller_span) is trust
    assert sent.header("tracestate") == (["vendor=1"] if trust else [])


@pytest.mark.parametrize(
    "header",
    ["", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "x" * 1000, "ff-1-2"],
)
async def test_a_traceparent_that_is_none_begins_a_new_trace(engine, http, collector, header):
    async with gateway_for(engine.url, **tracing(collector, trust_traceparent=True)) as app:
        assert (await ask(app, http, headers={"traceparent": header}))[0] == 200
        spans = await collector.got(4)
    assert not spans["chat m"].parent_span_id
    assert int(spans["chat m"].trace_id.hex(), 16)


@pytest.mark.parametrize(("flag", "sampled"), [("00", False), ("01", True)])
async def test_a_trusted_caller_decides_whether_it_is_sampled(
    engine, http, collector, flag, sampled
):
    settings = tracing(collector, trust_traceparent=True, sample=0.0 if sampled else 1.0)
    async with gateway_for(engine.url, **settings) as app:
        await ask(app, http, headers={"traceparent": CALLER[:-2] + flag})
        [sent] = engine.received
        assert sent.header("traceparent")[0].endswith(f"-{flag}")
    assert bool(collector.spans) is sampled  # the gateway's end exports what waits


async def test_a_share_is_sampled_and_the_engine_is_told_which(engine, http, collector):
    async with gateway_for(engine.url, **tracing(collector, sample=0.5)) as app:
        for _ in range(60):
            await ask(app, http)
        flags = [sent.header("traceparent")[0][-2:] for sent in engine.received]
    assert 10 <= flags.count("01") <= 50
    whole = [span for span in collector.spans if span.name == "chat m"]
    assert len(whole) == flags.count("01")


async def test_without_telemetry_nothing_is_made_and_headers_pass(engine, http):
    async with gateway_for(engine.url) as app:
        await ask(app, http, headers={"traceparent": CALLER})
        assert app.recorder.tracing is None
        assert app.handler.runtime.tracing is None
    assert engine.received[0].header("traceparent") == [CALLER]


async def test_the_collectors_headers_are_sent_and_shown_nowhere(engine, http, collector):
    settings = tracing(collector, headers={"Authorization": "Bearer collectors-key"})
    async with gateway_for(engine.url, **settings) as app:
        await ask(app, http)
        await collector.got(4)
        status = await _admin(app, http, "/status")
    assert collector.headers[0]["authorization"] == "Bearer collectors-key"
    assert "collectors-key" not in status + repr(app.settings)


@pytest.mark.parametrize("status", [401, 302, 400])
async def test_spans_the_collector_refuses_are_counted_and_told_once(engine, http, caplog, status):
    async with Collector(status).running() as collector:
        async with gateway_for(engine.url, **tracing(collector)) as app:
            for _ in range(3):
                assert (await ask(app, http))[0] == 200
                await asyncio.sleep(0.12)
        assert counted(app, "failed") == 12
        assert counted(app, "exported") == 0
    told = [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert len(told) == 1


async def test_a_collector_that_hangs_costs_no_request_and_its_queue_is_bounded(
    engine, http, monkeypatch
):
    monkeypatch.setattr(otel, "QUEUE", 40)
    monkeypatch.setattr(otel, "BATCH", 8)
    monkeypatch.setattr(otel, "PATIENCE", 3.0)
    monkeypatch.setattr(otel, "LAST_WORDS", 0.3)
    async with Collector(silent=True).running() as collector, own_clock() as clock:
        async with gateway_for(engine.url, **tracing(collector)) as app:
            for _ in range(30):
                assert (await ask(app, http))[0] == 200
            assert counted(app, "dropped") == 30 * 4 - 40
        assert clock() < 6.0  # what waits is given up, not waited for
        assert counted(app, "failed") == 40


async def test_a_collector_behind_tls_is_verified_by_its_authority(engine, http, tmp_path):
    authority, ca = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with Collector(tls=context).running() as collector:
        async with gateway_for(engine.url, **tracing(collector, tls={"ca": str(ca)})) as app:
            await ask(app, http)
            await collector.got(4)
        async with gateway_for(engine.url, **tracing(collector)) as app:  # not certifi's
            await ask(app, http)
        assert counted(app, "failed") == len(collector.spans) == 4
        missing = tracing(collector, tls={"ca": str(tmp_path / "none.pem")})
        with pytest.raises(SettingsError, match=r"telemetry\.tls\.ca: cannot be used for TLS"):
            async with gateway_for(engine.url, **missing):
                pass


async def test_no_collector_at_all(engine, http):
    async with gateway_for(
        engine.url, telemetry={"otlp": "http://127.0.0.1:9", "sample": 1.0}
    ) as app:
        assert (await ask(app, http))[0] == 200
        await asyncio.sleep(0.1)
    assert counted(app, "failed") == 4


async def test_a_reload_keeps_or_replaces_the_exporter(engine, http, collector):
    async with Collector().running() as other:
        settings = tracing(collector)
        async with gateway_for(engine.url, **settings) as app:
            first = app.recorder.tracing
            await app.reload(settings_for(engine.url, drain="1s", **settings))
            assert app.recorder.tracing is first
            await ask(app, http)
            await collector.got(4)
            await app.reload(settings_for(engine.url, **tracing(other)))
            await ask(app, http)
            await other.got(4)
            await app.reload(settings_for(engine.url))
            await ask(app, http)
            assert app.recorder.tracing is None
        assert len(collector.spans) == len(other.spans) == 4


async def test_a_missing_extra_is_a_fault_of_the_configuration(engine, collector, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "gateway.edge.otel")
    with pytest.raises(SettingsError, match=r"telemetry: .*poolgate\[otel\]"):
        async with gateway_for(engine.url, **tracing(collector)):
            pass


async def test_the_access_record_has_the_traces_id(engine, http, collector):
    async with gateway_for(engine.url, **tracing(collector)) as app:
        lines = []
        app.recorder._access = type("Lines", (), {"write": lambda self, line: lines.append(line)})()
        await ask(app, http)
        spans = await collector.got(4)
    [line] = lines
    assert json.loads(line)["trace_id"] == spans["chat m"].trace_id.hex()


async def _admin(app, http, path):
    async with http.get(app.admin_url + path) as response:
        return await response.text()


def _sha256(text):
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()
