"""What a running gateway writes: access records of real exchanges, and its log as JSON."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import aiohttp
import pytest

from fakes.raw_engine import RawEngine, chunk, delta, event, head
from gateway.app import App
from gateway.simulate import INSTANT, SimulateSettings, running
from integration.conftest import settings_for
from integration.faulty import BODY, SWAPPED
from waiting import until

SECRET_TEXT = "Zanzibar-tide-tables"
KEY = "sk-a-key-of-a-tenant-0123456789"
CHAT = {"model": "poolgate-sim", "messages": [{"role": "user", "content": SECRET_TEXT}]}


class Lines(list):
    """An access log that is a list."""

    def write(self, line):
        self.append(line)

    def close(self):
        pass


@pytest.fixture
async def logged():
    """A gateway and its engine, whose records are kept."""
    lines = Lines()
    async with running(SimulateSettings(timing=INSTANT)) as engine:
        app = App(access_log=lines)
        try:
            await app.start(settings_for(engine.url, backend={"queue": {"concurrent": 4}}))
            yield app, lines
        finally:
            await app.stop()


async def exchange(app, lines, body, path="/v1/chat/completions", **more):
    async with aiohttp.ClientSession() as http:
        async with http.post(app.data_url + path, json=body, **more) as answer:
            content = await answer.read()
    await until(lambda: lines)
    return answer, content, json.loads(lines.pop())


async def test_a_record_tells_the_whole_exchange(logged):
    app, lines = logged
    body = {**CHAT, "max_tokens": 5}
    answer, content, told = await exchange(app, lines, body)
    usage = json.loads(content)["usage"]
    assert told["request_id"] == answer.headers["x-request-id"]
    assert told["prompt_tokens"] == told["reported_prompt_tokens"] == usage["prompt_tokens"]
    assert told["completion_tokens"] == usage["completion_tokens"]
    assert told["limit"] == int(answer.headers["x-poolgate-limit"])
    assert told["bytes_in"] == len(json.dumps(body))
    assert told["bytes_out"] == len(content)
    assert told["checks"]["completeness"] == "ok"
    assert 0 < told["read_s"] + told["count_s"] < told["duration_s"] < 5
    assert told["ttft_s"] < told["duration_s"]
    assert told["queued_s"] == 0
    said = {"tenant": "default", "backend": "sim", "engine": "sglang", "model": "poolgate-sim"}
    assert said.items() <= told.items()
    assert (told["status"], told["outcome"], told["stream"]) == (200, "complete", False)
    assert told["incidents"] == []
    assert told["trace_id"] is told["limited_by"] is told["withheld_at"] is None


async def test_a_refusal_for_length_tells_whose_limit_it_was(logged):
    app, lines = logged
    long = [{"role": "user", "content": "word " * 20_000}]
    _, _, told = await exchange(app, lines, {**CHAT, "messages": long})
    assert told["outcome"] == "context_length_exceeded"
    assert told["length_limited_by"] == "engine"
    assert told["prompt_tokens"] is None
    assert told["prompt_tokens_bound"].startswith(">=")
    assert int(told["prompt_tokens_bound"][2:]) > told["limit"]
    assert told["count_s"] > 0
    assert told["bytes_out"] == 0


async def test_no_count_says_why(logged):
    app, lines = logged
    image = {"type": "image_url", "image_url": {"url": "https://a.example/x.png"}}
    _, _, told = await exchange(
        app, lines, {**CHAT, "messages": [{"role": "user", "content": [image]}]}
    )
    assert told["outcome"] == "prompt_not_countable"
    assert told["not_exact"]


async def test_what_a_client_writes_cannot_act_in_a_record(logged):
    app, lines = logged
    hostile = 'm"}\n{"tenant":"other"\u2028\x1b[2J' + "x" * 5000
    _, _, told = await exchange(app, lines, {**CHAT, "model": hostile})
    assert told["tenant"] == "default"
    assert told["model"].startswith(r'm"}\n{"tenant":"other"\u2028\x1b[2J')
    assert len(told["model"]) < 200


@pytest.mark.parametrize(
    ("path", "body"), [("/nothing/" + SECRET_TEXT, {}), ("/v1/chat/completions", {"model": 3})]
)
async def test_a_record_has_every_member_however_early_it_ends(logged, path, body):
    app, lines = logged
    _, _, complete = await exchange(app, lines, CHAT)
    headers = {"Authorization": f"Bearer {KEY}", "Cookie": SECRET_TEXT}
    _, _, told = await exchange(app, lines, body, path + "?" + SECRET_TEXT, headers=headers)
    assert told.keys() == complete.keys()
    assert SECRET_TEXT not in json.dumps([told, complete])
    assert KEY not in json.dumps(told)


async def test_a_record_names_the_incidents_of_its_answer():
    lines = Lines()
    async with RawEngine().running() as engine:
        engine.script = SWAPPED
        app = App(access_log=lines)
        try:
            await app.start(settings_for(engine.url))
            _, content, told = await exchange(app, lines, BODY)
        finally:
            await app.stop()
    [incident] = app.recorder.incidents
    assert told["incidents"] == [incident["id"]]
    assert told["outcome"] == "response_withheld"
    assert json.loads(content)["error"]["incident"] == incident["id"]


async def test_a_stream_withheld_in_its_midst_is_told_as_withheld():
    async def script(request, wire):
        usage = event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        wire.write(head(kind="text/event-stream", chunked=True))
        wire.write(chunk(delta("hello")))
        await asyncio.sleep(0.1)  # released: only the end is left to withhold
        wire.write(chunk(delta("", "stop")) + chunk(usage))
        wire.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    long = {**BODY, "stream": True, "messages": [{"role": "user", "content": "word " * 400}]}
    lines = Lines()
    async with RawEngine(limit=5000, context=9000).running() as engine:
        engine.script = script
        app = App(access_log=lines)
        try:
            blocking = {"prompt_tokens": {"action": "block"}}
            await app.start(settings_for(engine.url, integrity=blocking))
            with pytest.raises(aiohttp.ClientPayloadError):
                await exchange(app, lines, long)
            await until(lambda: lines)
        finally:
            await app.stop()
    told = json.loads(lines.pop())
    assert (told["status"], told["outcome"]) == (200, "response_withheld")
    assert len(told["incidents"]) == 1
    assert told["bytes_out"] > 0


async def test_the_log_of_a_process_is_json_lines_where_configured(tmp_path):
    file = tmp_path / "poolgate.yaml"
    written = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": [{"name": "a", "url": "http://127.0.0.1:9"}],
        "logging": {"format": "json"},
    }
    file.write_text(json.dumps(written))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    lines = []
    try:
        async with asyncio.timeout(60):
            while not any("listening" in line["message"] for line in lines):
                lines.append(json.loads(await process.stderr.readline()))
            written["logging"] = {"format": "text"}
            file.write_text(json.dumps(written))
            process.send_signal(signal.SIGHUP)
            while b"configuration reloaded" not in (line := await process.stderr.readline()):
                assert line
        assert b"INFO configuration reloaded" in line
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    assert {"time", "level", "logger", "worker", "message"} == set.union(*map(set, lines))
