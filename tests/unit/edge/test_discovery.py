"""When a backend is asked what it holds."""

from __future__ import annotations

import asyncio

import pytest

from gateway.edge import discovery
from gateway.edge.discovery import LEAST_PAUSE, Discovery


class Prober:
    def __init__(self):
        self.asked = []

    async def ask(self, url, probes):
        self.asked.append(url)
        return {}


@pytest.mark.parametrize(("place", "first", "second"), [(0, 0.0, 5.0), (3, 0.03, 20.0)])
async def test_of_many_backends_some_are_asked_later_than_others(place, first, second, monkeypatch):
    """Asked one after the other at first, then spread over the refresh, which is then kept."""
    prober, slept, waits = Prober(), [], []

    async def sleep(seconds):
        slept.append((seconds, len(prober.asked)))

    def timeout(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            raise asyncio.CancelledError
        return asyncio.Timeout(0)

    monkeypatch.setattr(discovery.asyncio, "sleep", sleep)
    monkeypatch.setattr(discovery.asyncio, "timeout", timeout)
    one = Discovery("a", "http://h", prober, clock=lambda: 0.0, refresh=20.0)
    with pytest.raises(asyncio.CancelledError):
        await one.run(place, 4)
    assert slept[0] == (first, 0)
    assert [LEAST_PAUSE + wait for wait in waits] == [second, 20.0, 20.0]
