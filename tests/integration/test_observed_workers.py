"""Several workers as one gateway to those who watch it: their logs, their traces."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

pytest.importorskip("opentelemetry.sdk", reason="poolgate[otel] is not installed")

from fakes.collector import Collector
from integration.test_workers import serving, settings
from valkey_server import server


@pytest.fixture(scope="module")
def store():
    with server() as valkey:
        yield valkey.url


async def test_workers_say_who_they_are_and_export_what_each_served(engine, store, tmp_path):
    async with Collector().running() as collector:
        observed = {
            "logging": {"format": "json"},
            "telemetry": {"otlp": collector.url, "sample": 1.0},
        }
        async with serving(tmp_path, settings(engine, store, 2, **observed)) as served:
            assert await asyncio.gather(*(served.post() for _ in range(20))) == [200] * 20
            served.process.send_signal(signal.SIGTERM)
            status, records, errors = await served.ended()
    assert status == 0
    whole = [span for span in collector.spans if span.name == "chat m"]
    told = [json.loads(record) for record in records.splitlines()]
    assert {span.trace_id.hex() for span in whole} == {record["trace_id"] for record in told}
    assert len(told) == 20
    instances = {resource["service.instance.id"] for resource in collector.resources}
    assert len(instances) == 2
    lines = [json.loads(line) for line in errors.splitlines()]
    assert {"listening", "draining"} <= {line["message"].split(" ")[0] for line in lines}
    assert {line["worker"] for line in lines} >= {None}


async def test_a_workers_line_has_its_number_and_a_reload_reaches_its_log(engine, store, tmp_path):
    quiet = settings(engine, store, 2, logging={"format": "text"})
    async with serving(tmp_path, quiet) as served:
        written = served.config.read_text().replace("format: text", "format: json")
        assert "format: json" in written
        served.config.write_text(written)
        served.process.send_signal(signal.SIGHUP)
        await served.until_said(b"configuration reloaded", 1)
        served.process.kill()  # workers note that they are alone
        _, _, errors = await served.ended()
    lines = [line for line in errors.splitlines() if "supervisor is gone" in line]
    assert sorted(json.loads(line)["worker"] for line in lines) == [0, 1]
