"""Row 18: health probes are answered while long prompts are counted."""

from __future__ import annotations

import asyncio
import io
import json
import random
import time

from integration.test_serve import served
from waiting import own_clock

LARGE = 8
EVERY = 0.05


def prompt(seed):
    """A megabyte of words, none remembered from another."""
    words = random.Random(seed)
    text = " ".join(f"w{words.randrange(10**6)}" for _ in range(140_000))
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


async def health(port, clock):
    """Seconds that one probe on a connection of its own took."""
    began = clock()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    seen = await reader.read()
    writer.close()
    assert seen.startswith(b"HTTP/1.1 200")
    return clock() - began


async def probes(port, until):
    """Probes every 50 ms, whether or not those before were answered."""
    calls = []
    async with own_clock() as clock:
        while not until():
            calls.append(asyncio.ensure_future(health(port, clock)))
            await asyncio.sleep(EVERY)
        return sorted(await asyncio.gather(*calls))


async def test_row_18_health_is_told_while_megabytes_are_counted(engine, http):
    engine.limit = engine.context = 2_000_000
    async with served("--backend", engine.url, "--tokenizer", "poolgate-tiny") as (_, url, admin):
        port = int(admin.rpartition(":")[2])

        async def ask(seed):
            data = io.BytesIO(prompt(seed))
            headers = {"content-type": "application/json"}
            async with http.post(url + "/v1/chat/completions", data=data, headers=headers) as told:
                return told.status

        assert await ask(0) == 200  # the tokenizer is loaded by now
        began = time.monotonic()
        idle = await probes(port, lambda: time.monotonic() - began > 1.0)
        asked = [asyncio.ensure_future(ask(seed)) for seed in range(1, LARGE + 1)]
        busy = await probes(port, lambda: all(each.done() for each in asked))
        assert [each.result() for each in asked] == [200] * LARGE
    # A machine that is slow when nothing is asked of the gateway is no fault of the gateway's.
    slow = max(0.25, 10 * idle[len(idle) * 95 // 100])
    assert busy[len(busy) // 2] < slow
    assert len(busy) >= 3
