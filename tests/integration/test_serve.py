"""The command as operators run it: signals, exit codes, reload, what is logged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import socket
import sys

import aiohttp
import psutil
import pytest

from fakes.raw_engine import chunk, delta, head
from waiting import PATIENCE

BODY = {"model": "m", "messages": [{"role": "user", "content": "SECRETPROMPT"}]}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.asynccontextmanager
async def served(*arguments):
    """``poolgate serve`` with free ports: process, data URL, admin URL."""
    data, admin = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        "serve",
        *arguments,
        "--listen",
        f"127.0.0.1:{data}",
        "--admin",
        f"127.0.0.1:{admin}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SOME_KEY": "LEAKMARK-engine"},
    )
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):
            while process.returncode is None:
                with contextlib.suppress(aiohttp.ClientError):
                    await http.get(f"http://127.0.0.1:{admin}/healthz")
                    break
                await asyncio.sleep(0.05)
        yield process, f"http://127.0.0.1:{data}", f"http://127.0.0.1:{admin}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_serve_needs_only_a_backend(engine, http):
    async with served("--backend", engine.url) as (process, url, admin):
        reply = await http.post(url + "/v1/chat/completions", json=BODY)
        assert reply.status == 200
        status = await (await http.get(admin + "/status")).json()
        assert status["backends"][0]["limit"]["max_prompt_tokens"] == 1017
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def test_serve_takes_as_many_open_files_as_it_may(engine):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        async with served("--backend", engine.url) as (process, _, _):
            assert psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_sigterm_lets_a_stream_end_and_takes_no_more(engine, http):  # case 71
    go_on = asyncio.Event()

    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True) + chunk(delta("a")))
        await go_on.wait()
        wire.write(chunk(delta("b", "stop")) + chunk(b"data: [DONE]\n\n") + chunk(b""))

    engine.script = script
    async with served("--backend", engine.url) as (process, url, admin):
        stream = await http.post(url + "/v1/chat/completions", json={**BODY, "stream": True})
        assert await stream.content.readuntil(b"\n\n")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            while (await http.get(admin + "/readyz")).status == 200:
                await asyncio.sleep(0.02)
        async with aiohttp.ClientSession() as other:
            with pytest.raises(aiohttp.ClientConnectionError):
                await other.post(url + "/v1/chat/completions", json=BODY)
        assert process.returncode is None
        go_on.set()
        assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


@pytest.mark.parametrize(("drain", "signals"), [("10m", 2), ("1s", 1)])
async def test_a_stream_without_end_ends_at_the_second_sigterm_or_the_budget(
    engine, http, tmp_path, drain, signals
):
    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True) + chunk(delta("a")))
        await asyncio.Event().wait()

    engine.script = script
    config = tmp_path / "c.yaml"
    config.write_text(f"backends: [{{name: a, url: '{engine.url}'}}]\ndrain: {drain}\n")
    async with served("--config", str(config)) as (process, url, _):
        stream = await http.post(url + "/v1/chat/completions", json={**BODY, "stream": True})
        assert await stream.content.readuntil(b"\n\n")
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
        with pytest.raises(aiohttp.ClientPayloadError):  # visibly cut
            await stream.content.read()
        stream.close()


async def test_a_bad_configuration_names_every_fault_and_exits_2(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "listen: nowhere\nbackends: [{name: a, url: ftp://x, limit: {refresh: 3}}]\nx: 1\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        "serve",
        "--config",
        str(bad),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    for path in ("listen", "backends[0].url", "backends[0].limit.refresh", "x"):
        assert re.search(rf"^{re.escape(path)}\b", errors.decode(), re.MULTILINE), path


async def test_a_tokenizer_that_is_not_there_is_a_configuration_fault(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("backends: [{name: a, url: 'http://127.0.0.1:1', tokenizer: nonesuch}]\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        "serve",
        "--config",
        str(config),
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"backends[0].tokenizer" in errors


async def test_sighup_reloads_and_a_bad_file_leaves_the_old_whole(engine, http, tmp_path):
    config = tmp_path / "c.yaml"

    def write(limit):
        config.write_text(
            f"backends: [{{name: a, url: '{engine.url}', limit: {{max_prompt_tokens: {limit}}}}}]\n"
        )

    async def limit_is(admin, expected):
        async with asyncio.timeout(PATIENCE):
            while True:
                status = await (await http.get(admin + "/status")).json()
                if status["backends"][0]["limit"].get("max_prompt_tokens") == expected:
                    return
                await asyncio.sleep(0.05)

    write(100)
    async with served("--config", str(config)) as (process, url, admin):
        await limit_is(admin, 100)
        write(50)
        process.send_signal(signal.SIGHUP)
        await limit_is(admin, 50)
        config.write_text("nonsense: [")
        process.send_signal(signal.SIGHUP)
        while b"reload refused" not in (line := await process.stderr.readline()):
            assert line
        await limit_is(admin, 50)
        reply = await http.post(url + "/v1/completions", json={"model": "m", "prompt": [1] * 51})
        assert reply.status == 400
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def test_no_text_and_no_key_in_logs_metrics_or_errors(engine, http, tmp_path):  # case 65
    from hashlib import sha256

    digest = sha256(b"LEAKMARK-tenant").hexdigest()
    config = tmp_path / "c.yaml"
    config.write_text(
        f"backends: [{{name: a, url: '{engine.url}', api_key: '${{SOME_KEY}}'}}]\n"
        f"tenants: [{{id: t, key_sha256: ['{digest}'], policy: p}}]\npolicies: {{p: {{}}}}\n"
    )

    async def hostile(request, wire):
        wire.abort()

    seen = b""
    async with served("--config", str(config)) as (process, url, admin):
        for key in ("LEAKMARK-tenant", "LEAKMARK-wrong", "LEAKMARK-\xe4"):
            for script in (engine.answer_chat, hostile):
                engine.script = script
                for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
                    reply = await http.post(
                        url + "/v1/chat/completions?key=LEAKMARK", json=BODY, headers=headers
                    )
                    seen += await reply.read() + str(reply.headers).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"POST /v1/chat LEAKMARK\r\nAuthorization\x00: LEAKMARK\r\n\r\n")
        await reader.read()
        writer.close()
        for path in ("/metrics", "/status", "/incidents", "/readyz"):
            seen += await (await http.get(admin + path)).read()
        process.send_signal(signal.SIGTERM)
        records, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert engine.received[0].header("Authorization") == ["Bearer LEAKMARK-engine"]
    for mark in (b"LEAKMARK", b"SECRETPROMPT"):
        assert mark not in seen
        assert mark not in errors
        assert mark not in records
    record = json.loads(records.splitlines()[0])
    assert record["tenant"] == "t"
    assert record["outcome"] == "complete"
