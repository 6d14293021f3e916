"""What a request made is freed by reference counting: no cycle waits for the collector."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref

import pytest
from multidict import CIMultiDict
from yarl import URL

from gateway.edge.exchange import Exchange
from gateway.edge.upstream import Deadlines, NotSent, Upstream, UpstreamAnswer
from integration.test_closed_paths import BODY, send

TOO_LONG = json.dumps({"model": "m", "prompt": [1] * 400_000, "max_tokens": 4}).encode()
STREAMED = json.dumps({**json.loads(BODY), "stream": True}).encode()


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def exchanges():
    return [one for one in gc.get_objects() if type(one) in (Exchange, UpstreamAnswer)]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", BODY, 200),
        ("/v1/chat/completions", STREAMED, 200),
        ("/v1/completions", TOO_LONG, 400),
        ("/v1/chat/completions", b"{", 400),
        ("/v1/nothing", BODY, 404),
    ],
    ids=["answered", "streamed", "too long", "malformed", "not found"],
)
async def test_no_exchange_outlives_its_answer(live, no_collector, path, body, status):
    before = len(exchanges())
    assert (await send(live.app, "POST", path, body=body))[0] == status
    for _ in range(100):
        if len(exchanges()) == before:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(exchanges()) - before} left")


class Teller:
    """What a call to an engine holds, as it holds the body."""

    tokens = 1

    def failed(self, failure):
        pass


async def test_an_engine_that_cannot_be_reached_leaves_no_body(no_collector, unused_tcp_port):
    """aiohttp's own errors are cycles; what they passed through must not hang on them."""
    upstream = Upstream(Deadlines(connect=1.0))
    teller = Teller()
    seen = weakref.ref(teller)
    url = URL(f"http://127.0.0.1:{unused_tcp_port}/v1/completions")
    try:
        await upstream.open(url, CIMultiDict(), (b"x",), teller)
    except NotSent as refusal:
        refusal.kept()
    del teller
    assert seen() is None
    await upstream.close()
