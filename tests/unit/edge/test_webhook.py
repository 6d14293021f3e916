"""Delivery of incidents: order, patience, and an end to it."""

from __future__ import annotations

import asyncio
import hmac
from datetime import UTC, datetime

import pytest
from aiohttp import web

from gateway.edge import webhook
from gateway.edge.metrics import Metrics
from gateway.edge.webhook import ATTEMPTS, Webhook, signature
from waiting import PATIENCE, until


class Receiver:
    def __init__(self):
        self.got, self.status = [], 204

    async def __call__(self, request):
        self.got.append(await request.json())
        return web.Response(status=self.status)


@pytest.fixture
async def receiver():
    got = Receiver()
    server = web.ServerRunner(web.Server(got))
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    got.url = f"http://127.0.0.1:{server.addresses[0][1]}"
    yield got
    await server.cleanup()


@pytest.fixture
def metrics():
    return Metrics()


def count(metrics, result):
    return metrics.registry.get_sample_value(
        "poolgate_webhook_deliveries_total", {"result": result}
    )


async def test_all_are_delivered_in_order_also_those_that_wait_at_the_end(receiver, metrics):
    hook = Webhook(receiver.url, b"secret", metrics)
    for number in range(20):
        hook.put({"n": number})
    await hook.close()
    assert [each["n"] for each in receiver.got] == list(range(20))
    assert count(metrics, "delivered") == 20


@pytest.mark.parametrize("status", [500, 404, 302])
async def test_what_is_never_taken_is_given_up_and_the_next_is_tried(receiver, metrics, status):
    receiver.status = status
    hook = Webhook(receiver.url, b"secret", metrics, first_pause=0.001)
    hook.put({"n": 0})
    await until(lambda: count(metrics, "failed") >= 1)
    assert len(receiver.got) == ATTEMPTS
    receiver.status = 200
    hook.put({"n": 1})
    await hook.close()
    assert count(metrics, "delivered") == 1


async def test_a_full_queue_drops_and_counts(receiver, metrics, monkeypatch):
    monkeypatch.setattr(webhook, "WAITING", 2)
    hook = Webhook(receiver.url, b"secret", metrics)
    for number in range(5):
        hook.put({"n": number})  # nothing has run in between
    assert count(metrics, "dropped") == 3
    await hook.close()
    assert count(metrics, "delivered") == 2


async def test_the_end_does_not_wait_for_ever(metrics, monkeypatch):
    monkeypatch.setattr(webhook, "LAST_WORDS", 0.05)
    hook = Webhook("http://127.0.0.1:9", b"secret", metrics, first_pause=60)
    hook.put({"n": 0})
    async with asyncio.timeout(PATIENCE):
        await hook.close()


def test_the_signature_covers_the_time_and_the_body():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    stamp = int(at.timestamp())
    mac = hmac.new(b"k", f"{stamp}.body".encode(), "sha256").hexdigest()
    assert signature(b"k", b"body", at) == f"t={stamp},v1={mac}"
