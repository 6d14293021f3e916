"""Nothing over the limit reaches the engine, nothing that fits is refused, on each dialect.

POOLGATE_PROOF sets the number of requests a side and dialect; docs/proof.md records the run of
10,000. The fast suite sends fewer of the same.
"""

from __future__ import annotations

import asyncio
import collections
import os
import random

import pytest

from boundary import DIALECTS, case
from gateway.simulate import INSTANT, SimulateSettings
from integration.conftest import gateway_and_engine

REQUESTS = int(os.environ.get("POOLGATE_PROOF", "150"))
CONCURRENT = 16
POOL = 192  # limit 185: small, so that tens of thousands of prompts are quick


@pytest.fixture
async def small():
    sim = SimulateSettings(timing=INSTANT, context=4096, prefill_pool=POOL, decode_pool=1 << 17)
    async with gateway_and_engine(sim) as live:
        yield live


async def send_all(live, cases):
    """Statuses, in order, with a bounded number under way."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def send(one):
        async with gate:
            status, headers, body = await live.post(one.path, one.body)
            return one, status, headers, body

    return await asyncio.gather(*(send(one) for one in cases))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("over", [True, False], ids=["over", "fits"])
async def test_the_limit_is_exact(small, dialect, over):
    limit = small.app.generation.runtime.backends[0].capacity().tokens
    assert limit == POOL - 7
    tokeniser = small.engine.service.tokeniser
    rng = random.Random(f"{dialect} {over}")
    verdicts = collections.Counter()
    for begin in range(0, REQUESTS, 500):
        before = small.engine.counters.requests
        many = min(500, REQUESTS - begin)
        cases = [case(dialect, tokeniser, rng, limit, over) for _ in range(many)]
        for one, status, headers, body in await send_all(small, cases):
            verdicts[status] += 1
            assert status == (400 if over else 200), (one, body)
            if over:
                assert headers["x-poolgate-prompt-tokens"].lstrip(">=").isdigit()
                assert headers["Content-Type"] == "application/json"
        reached = small.engine.counters.requests - before
        assert (reached == 0) if over else (reached >= many)
    assert verdicts == {400 if over else 200: REQUESTS}
    checks = small.app.metrics.registry.get_sample_value
    mismatches = checks("poolgate_checks_total", {"check": "prompt_tokens", "verdict": "mismatch"})
    assert not mismatches
    if not over:
        ok = checks("poolgate_checks_total", {"check": "prompt_tokens", "verdict": "ok"})
        assert ok == REQUESTS
