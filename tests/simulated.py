"""A running simulated engine for tests, and tenants who leave their prompts in its memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from gateway.simulate import INSTANT, Faults, Handle, SimulateSettings, running
from waiting import until

LIMIT = 1017  # min(context 4096, prefill 1024, decode 4096) - 7
PLAIN = {"model": "m", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 6}
TENANTS = (
    "harbour pilots",
    "mill accounts",
    "school maps",
    "bakery ladders",
    "river locks",
    "market string",
    "winter flour",
    "evening boats",
)


@dataclass
class Running:
    handle: Handle
    client: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        async with self.client.post(path, json=body, **options) as answer:
            raw = await answer.read()
            return answer.status, json.loads(raw) if raw else None

    async def events(self, path: str, body: Any) -> tuple[int, list[Any]]:
        """A stream's data, decoded; ``[DONE]`` stays text."""
        async with self.client.post(path, json=body | {"stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            lines = (await answer.read()).decode().split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return answer.status, [item if item == "[DONE]" else json.loads(item) for item in data]

    async def generate(self, length: int, rid: str, **sampling: Any) -> tuple[int, Any]:
        return await self.post(
            "/generate",
            {
                "input_ids": [1500] * length,
                "rid": rid,
                "sampling_params": {"max_new_tokens": 200, "ignore_eos": True} | sampling,
            },
        )

    async def until_idle(self) -> None:
        await until(lambda: self.handle.idle)


@asynccontextmanager
async def serving(*faults: str, **changes: Any) -> AsyncIterator[Running]:
    """An engine with these faults and an HTTP client for it."""
    sizes = {"context": 4096, "prefill_pool": 1024, "decode_pool": 4096, "timing": INSTANT}
    settings = SimulateSettings(faults=Faults.named(faults), **(sizes | changes))
    async with running(settings) as handle, aiohttp.ClientSession(handle.url) as client:
        yield Running(handle, client)


def secret(tenant: str) -> str:
    """A tenant's text: numbered sentences that no other tenant has."""
    return " ".join(f"Note {n} on {tenant}: lot {n * 7 + len(tenant)} stays." for n in range(40))


async def fill(sim: Running) -> dict[str, str]:
    """Let tenants leave their prompts in all of decode's memory; their texts by rid.

    Free pages are used first in, first out: until each was used once, there is nothing to leak.
    """
    texts = {f"tenant-{n}": secret(name) for n, name in enumerate(TENANTS)}
    for rid, text in texts.items():
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "rid": rid}
        status, answer = await sim.post("/v1/chat/completions", body)
        assert (status, answer["id"]) == (200, rid)
    return texts
