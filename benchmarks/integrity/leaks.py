"""A gateway in front of an engine that leaks: what is withheld, and what got out before.

The gateway knows nothing of the fault. What really was in an answer is read off the text itself:
the longest stretch it has in common with what another tenant sent.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from typing import Any

import aiohttp

from benchmarks.integrity import local_texts
from benchmarks.integrity.detection import normal
from benchmarks.integrity.stats import share
from gateway.app import App
from gateway.settings import NoSecrets, parse
from gateway.simulate import INSTANT, Faults, SimulateSettings, running
from gateway.simulate.text import Habits

TENANTS = tuple(f"tenant-{number}" for number in range(12))
ASKING = TENANTS[-1]
PROMPT_CHARS = 1_600
ROUNDS_IN_MEMORY = 4  # of everybody's prompts, before the engine has overwritten them
BUCKETS = ((24, 64), (64, 87), (87, 112), (112, 160), (160, 240), (240, 10_000))


@dataclass(frozen=True)
class Answer:
    """One answer as its client saw it, and whether it was found to leak."""

    text: str
    whole: bool
    found: bool


def settings_for(faults: Faults, habits: Habits) -> SimulateSettings:
    """An engine whose prefill pool is smaller than it says, and whose tokens are short."""
    return SimulateSettings(
        timing=INSTANT,
        context=8_192,
        prefill_pool=1_024,
        decode_pool=8_192,
        mean_answer=350,
        faults=faults,
        habits=habits,
    )


@asynccontextmanager
async def gateway(sim: SimulateSettings, action: str) -> AsyncIterator[App]:
    """A gateway with fingerprints and no other check of content."""
    async with running(sim) as engine:
        app = App()
        tenants = [
            {"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in TENANTS
        ]
        written: Mapping[str, Any] = {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "backends": [
                {
                    "name": "sim",
                    "url": engine.url,
                    "tokenizer": "poolgate-tiny",
                    "calibration": {"every": "0s"},
                }
            ],
            "tenants": tenants,
            "integrity": {
                "fingerprints": {"action": action, "learning": "0s"},
                "latency": {"action": "off"},
                "prompt_tokens": {"sample": 0.0},
            },
        }
        try:
            await app.start(parse(written, NoSecrets()))
            yield app
        finally:
            await app.stop()


class Clients:
    """All tenants, each with texts of its own."""

    def __init__(self, app: App, http: aiohttp.ClientSession, sources: Sequence[str]) -> None:
        self._app = app
        self._http = http
        self._sources = sources
        self._rng = random.Random(7)
        self.sent: deque[bytes] = deque(maxlen=ROUNDS_IN_MEMORY * len(TENANTS))

    async def fill(self) -> None:
        """Every tenant but one sends a text no one sent before."""
        for number, tenant in enumerate(TENANTS[:-1]):
            source = self._sources[number]
            start = self._rng.randrange(len(source) - PROMPT_CHARS)
            text = source[start : start + PROMPT_CHARS]
            self.sent.append(normal(text))
            await self.ask(tenant, text, 4)
        await asyncio.sleep(0.01)
        while any("fingerprints" in each.get_name() for each in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def ask(self, tenant: str, text: str, most: int) -> Answer:
        """A streamed answer."""
        before = self._leaks()
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
        seen = b""
        async with self._http.post(
            self._app.data_url + "/v1/chat/completions",
            json=body | {"max_tokens": most},
            headers={"x-api-key": tenant},
        ) as reply:
            try:
                async for part in reply.content.iter_any():
                    seen += part
            except aiohttp.ClientPayloadError:
                pass
        return Answer(_content(seen), b"[DONE]" in seen, self._leaks() > before)

    def _leaks(self) -> int:
        return sum(
            incident["finding"]["reason"] != "finding_rate"
            for incident in self._app.recorder.incidents
        )

    def foreign(self, text: str) -> int:
        """The longest stretch, in normal bytes, that the text shares with another's prompt."""
        answer = normal(text)
        return max((_common(answer, sent) for sent in self.sent), default=0)


def _content(stream: bytes) -> str:
    parts = []
    for line in stream.decode().splitlines():
        if line.startswith("data: {"):
            choices = json.loads(line[6:]).get("choices", ())
            parts += [choice["delta"].get("content") or "" for choice in choices]
    return "".join(parts)


def _common(one: bytes, other: bytes) -> int:
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.find_longest_match().size


async def over_pool(sources: Sequence[str], rounds: int, action: str) -> list[tuple[int, Answer]]:
    """The incident again and again: foreign bytes in what the client saw, and the answer."""
    sim = settings_for(Faults(to_finish=True, server_info=True), Habits(mean_run=80))
    seen = []
    async with gateway(sim, action) as app, aiohttp.ClientSession() as http:
        clients = Clients(app, http, sources)
        rng = random.Random(3)
        for _ in range(rounds):
            await clients.fill()
            prompt = local_texts.filler(1_400, rng)
            answer = await clients.ask(ASKING, prompt, 400)
            seen.append((clients.foreign(answer.text), answer))
    return seen


async def clean(sources: Sequence[str], rounds: int) -> int:
    """The same traffic with an engine that has no fault: how many answers were withheld."""
    sim = settings_for(Faults(), Habits(echo=0.5, mean_run=80))
    withheld = 0
    async with gateway(sim, "block") as app, aiohttp.ClientSession() as http:
        clients = Clients(app, http, sources)
        rng = random.Random(4)
        for _ in range(rounds):
            await clients.fill()
            answer = await clients.ask(ASKING, local_texts.filler(150, rng), 400)
            withheld += answer.found
    return withheld


def measured(sources: Sequence[str], rounds: int) -> dict[str, Any]:
    """Flagged, to see all of each answer; then blocked, to see what gets out."""
    flagged = asyncio.run(over_pool(sources, rounds, "flag"))
    blocked = asyncio.run(over_pool(sources, rounds, "block"))
    cut = sorted(foreign for foreign, answer in blocked if answer.found)
    clean_rounds = rounds // 4
    return {
        "rounds": rounds,
        "by_length": [
            {
                "from": low,
                "to": high,
                "found": share(
                    sum(answer.found for length, answer in flagged if low <= length < high),
                    sum(low <= length < high for length, _ in flagged),
                ),
            }
            for low, high in BUCKETS
        ],
        "cut": len(cut),
        "let_out_median": cut[len(cut) // 2] if cut else None,
        "let_out_most": cut[-1] if cut else None,
        "looked_complete": sum(answer.found and answer.whole for _, answer in blocked),
        "clean": share(asyncio.run(clean(sources, clean_rounds)), clean_rounds * len(TENANTS)),
    }
