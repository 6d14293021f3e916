"""Prompts that take seconds to count keep no other tenant waiting."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json

import pytest

from gateway.simulate import INSTANT, SimulateSettings
from integration.conftest import gateway_and_engine

CHAT = "/v1/chat/completions"
THREADS = 2
TENANTS = {
    "counting": {"threads": THREADS},
    "tenants": [
        {"id": name, "key_sha256": [hashlib.sha256(name.encode()).hexdigest()], "policy": "p"}
        for name in ("bad", "good")
    ],
    "policies": {"p": {}},
}
RUNS = {"spaces": " " * 6_000_000, "signs": "=" * 6_000_000}  # a second or more in one call
SHORT = "a few words"  # counted on the event loop
LONG = " ".join(f"w{index}" for index in range(3_000))  # 18 kB: counted on a thread


@pytest.mark.parametrize("kind", RUNS)
async def test_others_are_answered_while_pathological_prompts_are_counted(kind):
    """As many at once as there are threads for the others' counts."""
    sim = SimulateSettings(timing=INSTANT, context=65_536, prefill_pool=32_768)
    async with gateway_and_engine(sim, **TENANTS) as live:

        async def ask(tenant, text):
            body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
            data = io.BytesIO(json.dumps(body).encode())  # the client warns of large plain bodies
            headers = {"authorization": f"Bearer {tenant}", "content-type": "application/json"}
            async with live.http.post(live.url + CHAT, data=data, headers=headers) as answer:
                return answer.status

        for text in (SHORT, LONG):
            assert await ask("good", text) == 200
        meanwhile = []
        for turn in range(3):  # a pause of this process can outlast the counts of one turn
            answered = len(meanwhile)
            text = RUNS[kind] + "." * turn
            bad = [asyncio.create_task(ask("bad", text)) for _ in range(THREADS)]
            while not any(task.done() for task in bad):
                # Of a text not seen before, so that nothing of it is remembered.
                texts = (f"{len(meanwhile)} {short}" for short in (SHORT, LONG))
                meanwhile += [await ask("good", text) for text in texts]
            assert await asyncio.gather(*bad) == [400] * THREADS
            if len(meanwhile) >= answered + 10:  # a hundred and more on a quiet machine
                break
        else:
            pytest.fail("others waited")
        assert set(meanwhile) == {200}
