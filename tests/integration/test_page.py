"""The page's files, its numbers, and what browsers are told on the admin plane."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import aiohttp
import pytest

from fakes.raw_engine import RawEngine
from gateway.edge.page import FILES
from gateway.simulate import Faults, Timing, running
from integration.conftest import gateway_and_engine, gateway_for
from integration.faulty import (
    BODY,
    KEYS,
    LONG,
    QUARANTINE,
    SWAPPED,
    admin,
    gateway_of,
    standing,
    two_engines,
)
from integration.test_checks import LEAKY, raw_post, settled, words
from integration.test_workers import gated, serving, settings
from valkey_server import server

ORIGIN = "http://elsewhere.example"


@pytest.fixture(scope="module")
def store():
    with server() as valkey:
        yield valkey.url


@pytest.mark.parametrize("path", [*FILES, "/overview", "/incidents", "/status", "/nowhere"])
async def test_every_answer_of_the_admin_plane_binds_the_browser(live, path):
    async with live.http.get(live.app.admin_url + path) as answer:
        policy = dict(
            part.strip().split(" ", 1)
            for part in answer.headers["Content-Security-Policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert (answer.status == 404) == (path == "/nowhere")
        if path in FILES:
            assert answer.content_type == FILES[path][1]


async def test_the_page_fetches_nothing_but_its_own_files(live):
    _, html = await live.admin("/")
    text = html.decode()
    told = set(re.findall(r'(?:src|href)="([^"]+)"', text))
    assert told <= {path[1:] for path in FILES} | {"status", "overview", "incidents"}
    assert not re.search(r"\son\w+=|style=|<script>|https?:", text)
    for path in FILES:
        if path.endswith(".js"):
            _, script = await live.admin(path)
            assert b"innerHTML" not in script
            assert b"://" not in script.replace(b"http://www.w3.org/2000/svg", b"")
            imported = re.findall(r'from "\.(/[\w.]+)"', script.decode())
            assert set(imported) <= FILES.keys()


async def overview(app):
    return (await admin(app, "/overview"))[1]


async def test_the_overview_tells_what_was_sent():
    quotas = {"policies": {"default": {"requests_per_minute": 2}}}
    calls = [("a", BODY), ("a", LONG), ("b", BODY), ("b", BODY), ("b", BODY), ("nobody", BODY)]
    async with RawEngine(limit=400, context=500).running() as engine:
        async with gateway_for(engine.url, **KEYS | quotas) as app, aiohttp.ClientSession() as http:
            usage = [await usage_of(http, app, key, body) for key, body in calls]
            await settled(app, count=3)
            told = await overview(app)
    shown = {
        one["id"]: [one["requests"], one["answered_400"], one["answered_429"], one["in_flight"]]
        for one in told["traffic"]["tenants"]
    }
    assert shown == {"a": [2, 1, 0, 0], "b": [3, 0, 1, 0], "none": [1, 0, 0, 0]}
    total = told["traffic"]["total"]
    assert total["requests"] == 6
    assert total["input_tokens"] == sum(one["prompt_tokens"] for one in usage if one) > 0
    assert total["output_tokens"] == sum(one["completion_tokens"] for one in usage if one) > 0
    assert sum(told["checks"]["prompt_tokens"].values()) == 3
    [backend] = told["backends"]
    assert backend["limit"]["max_prompt_tokens"] == 399
    assert told["verdict"]["headline"].startswith("sim is serving")


async def usage_of(http, app, key, body):
    """What the engine reported of a call; None where it was refused."""
    url = app.data_url + "/v1/chat/completions"
    async with http.post(url, json=body, headers={"x-api-key": key}) as answer:
        return (await answer.json()).get("usage")


# Far under what the engine does, so that a busy machine's leak is under the floor too.
CEILING = {"prefill_ceiling": 20_000}
HOLD = {"latency": {"action": "hold"}}


async def test_first_tokens_and_the_floor_as_the_latency_check_has_them():
    async with gateway_and_engine(LEAKY, backend=CEILING, integrity=HOLD) as live:
        for lesson in range(6):
            body = {**words(4_500 + lesson * 50, lesson), "stream": True}
            assert (await live.post("/v1/chat/completions", body))[0] == 200
        await settled(live.app, count=6)
        assert (await live.post("/v1/chat/completions", words(50_000, "leak")))[0] == 502
        [backend] = (await overview(live.app))["backends"]
        told = backend["first_token"]
        [incident] = live.app.recorder.incidents
        [learning] = live.app.generation.runtime.backends
        assert told["learnt_from"] == len(learning.prefill.recent) > 0
        assert told["ceiling_tokens_per_s"] == 20_000
        assert [suspect for _, _, suspect, _ in told["answers"]].count(False) == 6
        [[tokens, seconds, _, age]] = [row for row in told["answers"] if row[2]]
        assert tokens / 20_000 == pytest.approx(incident["finding"]["expected"], abs=1e-3)
        assert seconds == pytest.approx(incident["ttft_s"], abs=1e-4)
        assert 0 <= age < 60


async def test_one_that_was_asked_for_elsewhere_too():
    slow = Timing(prefill_tokens_per_second=10_000, inter_token=0.0, spread=0.0)
    pools = {"prefill_pool": 131_072, "decode_pool": 131_072}
    sound = replace(LEAKY, **pools, faults=Faults(), timing=slow)
    async with running(LEAKY) as leaky, running(sound) as other:
        entries = [
            {"name": name, "url": engine.url, "tokenizer": "poolgate-tiny"}
            | {"calibration": {"every": "0s"}}
            | CEILING
            for name, engine in (("leaky", leaky), ("sound", other))
        ]
        async with gateway_for(leaky.url, backends=entries, integrity=HOLD) as app:
            body = {**words(50_000, "leak"), "stream": True}
            assert (await raw_post(app, body))[0] == 200
            await settled(app)
            told = {one["name"]: one["first_token"] for one in (await overview(app))["backends"]}
            assert [row[2] for row in told["leaky"]["answers"]] == [True]
            assert [row[2] for row in told["sound"]["answers"]] == [False]
            [[first, *_]], [[second, *_]] = told["leaky"]["answers"], told["sound"]["answers"]
            assert first == second > 49_000


async def test_what_runs_is_told_before_it_has_ended(engine):
    go_on = asyncio.Event()
    engine.script = gated(go_on)
    async with gateway_for(engine.url) as app, aiohttp.ClientSession() as http:
        url = app.data_url + "/v1/chat/completions"
        async with http.post(url, json={**BODY, "stream": True}) as answer:
            await answer.content.readuntil(b"\n\n")
            [tenant] = (await overview(app))["traffic"]["tenants"]
            assert (tenant["id"], tenant["requests"], tenant["in_flight"]) == ("default", 0, 1)
            go_on.set()
            await answer.read()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # curl
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://behind.a.proxy"}, 200),
        ({"Origin": "ITSELF"}, 200),
        ({"Origin": ORIGIN}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": ORIGIN}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "ITSELF"}, 403),
    ],
)
async def test_another_sites_page_cannot_release_a_backend(headers, status):
    async with two_engines() as (one, other):
        async with gateway_of(one, other, integrity=QUARANTINE) as app:
            one.script = SWAPPED
            await raw_post(app, BODY)
            told = {
                name: app.admin_url if value == "ITSELF" else value
                for name, value in headers.items()
            }
            async with aiohttp.ClientSession() as http:
                url = app.admin_url + "/backends/a/release"
                async with http.post(url, headers=told) as answer:
                    assert answer.status == status
            state = (await standing(app, "a"))["state"]
            assert state == ("serving" if status == 200 else "quarantined")


async def test_the_page_of_several_workers_is_the_supervisors_and_sums_them(
    engine, store, tmp_path
):
    async with serving(tmp_path, settings(engine, store, 2)) as served:
        for _ in range(30):
            assert await served.post() == 200
        for path in FILES:
            async with served.http.get(served.admin + path) as answer:
                assert answer.status == 200
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        told = json.loads((await served.get("/overview"))[1])
        [tenant] = told["traffic"]["tenants"]
        assert (tenant["id"], tenant["requests"]) == ("default", 30)
        assert told["checks"]["binding"]["ok"] + told["checks"]["binding"]["unverifiable"] == 30
        assert [process["state"] for process in told["processes"]] == ["up", "up"]
        assert told["verdict"]["level"] in ("ok", "warning")
        async with served.http.post(
            served.admin + "/backends/a/release", headers={"Origin": ORIGIN}
        ) as answer:
            assert answer.status == 403
        async with served.http.post(served.admin + "/backends/a/release") as answer:
            assert answer.status == 200
