"""What a worker does when its supervisor asks."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.settings import NoSecrets
from gateway.supervise import merge, worker
from gateway.supervise.handover import Written, written

_, NEW = written("backends: [{name: a, url: 'http://h:1'}]\n", NoSecrets())


class App:
    def __init__(self):
        self.taken = []
        self.metrics = SimpleNamespace(registry=CollectorRegistry())

    async def reload(self, settings):
        self.settings = settings
        self.taken.append(settings)

    async def scrape(self, render):
        return render()


async def test_a_configuration_is_parsed_on_another_thread(monkeypatch):
    threads, parse = [], Written.settings
    monkeypatch.setattr(
        Written, "settings", lambda it: threads.append(threading.get_ident()) or parse(it)
    )

    async def read():
        return msgspec.json.encode(NEW)

    app = App()
    answer = await worker._take(app, 0, SimpleNamespace(content=SimpleNamespace(read=read)))
    assert msgspec.json.decode(answer.body) == []
    assert [settings.backends[0].name for settings in app.taken] == ["a"]
    assert threads
    assert threading.get_ident() not in threads


async def test_its_series_are_told_as_they_are_summed():
    app = App()
    Counter("poolgate_requests", "Requests", registry=app.metrics.registry).inc(3)
    [family] = merge.read((await worker._tell(app)).body)
    assert ("poolgate_requests_total", {}, 3.0) in [sample[:3] for sample in family.samples]


@pytest.mark.parametrize("library", ["glibc", "another"])
def test_what_start_up_freed_is_handed_back_where_the_library_can(library, monkeypatch):
    trimmed = []
    can = {"malloc_trim": trimmed.append} if library == "glibc" else {}
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda _: SimpleNamespace(**can))
    worker._give_back()
    assert trimmed == ([0] if can else [])
