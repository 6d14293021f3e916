"""Scrapes of the admin plane."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

from gateway.edge.admin import Admin
from gateway.edge.metrics import Metrics


def admin(*backends):
    handler = SimpleNamespace(runtime=SimpleNamespace(backends=backends))
    return Admin(handler, None, Metrics(), lambda: 0.0, None)


async def test_a_scrape_is_rendered_beside_the_event_loop():
    """Thousands of tenants take it a quarter of a second."""
    threads = []
    assert await admin().scrape(lambda: threads.append(threading.get_ident()) or b"x") == b"x"
    assert threads != [threading.get_ident()]


async def test_others_have_a_turn_between_two_backends(monkeypatch):
    monkeypatch.setattr(Admin, "_set_gauges", lambda _, backend: turns.append(backend.name))
    turns = []
    backends = [
        SimpleNamespace(name=name, discovery=SimpleNamespace(asks=True)) for name in ("a", "b")
    ]
    scrape = asyncio.ensure_future(admin(*backends).scrape(lambda: b""))
    while not scrape.done():
        await asyncio.sleep(0)
        turns.append("other")
    assert turns[:4] == ["a", "other", "b", "other"]


async def test_no_scrape_sets_gauges_while_another_one_is_rendered(monkeypatch):
    one, steps, go_on = admin(), [], threading.Event()
    monkeypatch.setattr(one._metrics, "forget_limits", lambda: steps.append("set"))

    def render():
        steps.append("rendering")
        go_on.wait(5)
        steps.append("rendered")
        return b""

    first = asyncio.ensure_future(one.scrape(render))
    while "rendering" not in steps:
        await asyncio.sleep(0)
    second = asyncio.ensure_future(one.scrape(lambda: b""))
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, second)
    assert steps == ["set", "rendering", "rendered", "set"]
