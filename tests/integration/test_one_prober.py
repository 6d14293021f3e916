"""Several processes, one prober: who asks, who hears, and what a dead or hung one leaves behind."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from fakes.raw_engine import RawEngine, answer
from gateway.app import App
from integration.conftest import settings_for
from integration.test_checks import raw_post, sample
from waiting import until

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LIMIT = {"refresh": "100ms", "stale_after": "3s"}


@asynccontextmanager
async def together(folder, engine, count, **limit):
    """Gateways as the workers of one supervisor are, all in this process."""
    settings = settings_for(engine.url, backend={"limit": LIMIT | limit})
    async with AsyncExitStack() as stack:
        apps = []
        for _ in range(count):
            app = App(shared=folder, secret=b"s" * 32)
            stack.push_async_callback(app.stop)
            await app.start(settings)
            apps.append(app)
        yield apps


def discovery(app):
    return app.generation.runtime.backends[0].discovery


def limit(app):
    known = app.generation.runtime.backends[0].capacity()
    return getattr(known, "tokens", None)


def leaders(apps):
    return [app for app in apps if app._together.leads]


def counting_rounds(apps):
    """How many rounds of questions each has begun from now on."""
    rounds = dict.fromkeys(apps, 0)

    def count(app):
        real = discovery(app).round

        async def counted():
            rounds[app] += 1
            await real()

        discovery(app).round = counted

    for app in apps:
        count(app)
    return rounds


async def test_four_ask_no_more_than_one(tmp_path, engine):
    async with together(tmp_path, engine, 4) as apps:
        rounds = counting_rounds(apps)
        await until(lambda: sum(rounds.values()) >= 8)
        [leader] = leaders(apps)
        assert [app for app in apps if rounds[app]] == [leader]
        assert [limit(app) for app in apps] == [1017] * 4
        assert [discovery(app).engine.name for app in apps] == ["sglang"] * 4
        for app in apps:
            async with aiohttp.ClientSession() as http:
                await (await http.get(app.admin_url + "/metrics")).read()
        assert sum(sample(app, "poolgate_probers") for app in apps) == 1


async def test_a_limit_that_falls_is_everyones_within_a_round(tmp_path, engine):
    async with together(tmp_path, engine, 3) as apps:
        engine.limit, engine.generation = 500, 1
        await until(lambda: [limit(app) for app in apps] == [499] * 3)


async def test_a_limit_learnt_from_a_refusal_at_any_is_everyones(tmp_path, engine):
    async def refuse(request, wire):
        text = "Input length (700 tokens) exceeds the maximum allowed length (600 tokens)."
        body = {"object": "error", "message": text, "type": "BadRequestError", "code": 400}
        wire.write(answer(json.dumps(body).encode(), status="400 Bad Request"))

    engine.script = refuse
    for place in range(3):
        folder = tmp_path / str(place)
        folder.mkdir()
        async with together(folder, engine, 3, refresh="1h", stale_after="2h") as apps:
            assert [limit(app) for app in apps] == [1017] * 3
            await raw_post(apps[place], BODY)
            await until(lambda apps=apps: len({limit(app) for app in apps} - {1017}) == 1)
            assert len({limit(app) for app in apps}) == 1
            assert limit(apps[place]) < 1017


async def test_when_the_leader_ends_another_asks(tmp_path, engine):
    async with together(tmp_path, engine, 3) as apps:
        first = leaders(apps)[0]
        await first.stop()
        rest = [app for app in apps if app is not first]
        await until(lambda: len(leaders(rest)) == 1)
        asked = engine.probes
        await until(lambda: engine.probes > asked)
        engine.limit, engine.generation = 500, 1
        await until(lambda: [limit(app) for app in rest] == [499] * 2)


async def test_one_that_comes_later_knows_at_once_and_without_a_question(tmp_path, engine):
    async with together(tmp_path, engine, 1, refresh="1h", stale_after="2h") as [first]:
        asked = engine.probes
        late = App(shared=tmp_path, secret=b"s" * 32)
        try:
            await late.start(first.settings)
            assert limit(late) == 1017
            assert engine.probes == asked
        finally:
            await late.stop()


async def test_a_leader_that_hangs_leaves_nobody_with_a_stale_limit(tmp_path, engine, monkeypatch):
    monkeypatch.setattr("gateway.edge.discovery.LONGEST_ROUND", 0.3)
    async with together(tmp_path, engine, 3) as apps:
        [hung] = leaders(apps)
        rest = [app for app in apps if app is not hung]
        await hung.generation.discovering.cancel()  # it holds the lock, and asks no more
        engine.limit, engine.generation = 500, 1
        await until(lambda: [limit(app) for app in rest] == [499] * 2)


async def test_an_engine_that_is_gone_is_stale_for_all(tmp_path, engine):
    async with together(tmp_path, engine, 2, stale_after="500ms") as apps:
        engine.answer_probes = False
        await until(lambda: [limit(app) for app in apps] == [None] * 2)
        engine.answer_probes = True
        await until(lambda: [limit(app) for app in apps] == [1017] * 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_reload_that_moves_a_backend_is_followed_one_by_one(tmp_path, engine, order):
    async with RawEngine(limit=700).running() as other, together(tmp_path, engine, 2) as apps:
        moved = settings_for(other.url, backend={"limit": LIMIT})
        for place in order:
            await apps[place].reload(moved)
            assert limit(apps[place]) == 699
        other.limit, other.generation = 500, 1
        await until(lambda: [limit(app) for app in apps] == [499] * 2)


async def test_garbage_in_the_folder_is_no_obstacle(tmp_path, engine):
    (tmp_path / "prober").write_text("left by one that was killed")
    async with together(tmp_path, engine, 2) as apps:
        assert len(leaders(apps)) == 1
        assert [limit(app) for app in apps] == [1017] * 2


async def test_what_is_no_message_costs_only_its_sender(tmp_path, engine):
    async with together(tmp_path, engine, 2) as apps:
        for text in (b"nonsense\n", b'{"type":"Learned"}\n', b'{"half'):
            _, writer = await asyncio.open_unix_connection(str(tmp_path / "prober"))
            writer.write(text)
            writer.close()
        engine.limit, engine.generation = 500, 1
        await until(lambda: [limit(app) for app in apps] == [499] * 2)
