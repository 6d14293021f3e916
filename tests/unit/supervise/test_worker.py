"""What a worker does when its supervisor asks."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import msgspec

from gateway.settings import NoSecrets
from gateway.supervise import worker
from gateway.supervise.handover import Written, written

_, NEW = written("backends: [{name: a, url: 'http://h:1'}]\n", NoSecrets())


class App:
    def __init__(self):
        self.taken = []

    async def reload(self, settings):
        self.settings = settings
        self.taken.append(settings)


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
