"""Parts about admission: the gate on, a limit the engine overstates, and clean traffic."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from benchmarks.integrity.rig import (
    ALL,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    OFF,
    RESPONSES,
    TENANTS,
    Body,
    Reply,
    Rig,
    Texts,
    call,
    rig,
    side_by_side,
)
from benchmarks.integrity.stats import share
from gateway.simulate import INSTANT, Faults, Handle, SimulateSettings
from gateway.simulate.chats import from_anthropic, from_openai

CONTEXT, POOL = 4_096, 1_024
LIMIT = POOL - 7
AT_ONCE = 12
CHARS_A_TOKEN = 3.2  # about; the engine's own count decides the side
PATHS = (CHAT, COMPLETIONS, MESSAGES)


def small(*faults: str, **changes: Any) -> SimulateSettings:
    """A short context over a shorter prefill pool."""
    sizes: dict[str, Any] = {
        "context": CONTEXT,
        "prefill_pool": POOL,
        "decode_pool": 20_480,
        "mean_answer": 40,
    }
    return SimulateSettings(timing=INSTANT, faults=Faults.named(faults), **sizes | changes)


def tokens_of(engine: Handle, path: str, body: Body) -> int:
    """The prompt's length by the engine's own count."""
    tokeniser = engine.service.tokeniser
    if path == COMPLETIONS:
        return len(tokeniser.encode([body["prompt"]])[0])
    chat = from_anthropic(body, inline_system=False) if path == MESSAGES else from_openai(body)
    return len(tokeniser.encode_chat(chat))


def mixed(texts: Texts) -> tuple[str, str, Body]:
    """A request of any tenant: a quarter close to the limit, a quarter over it, the rest under."""
    dice = texts.dice
    low, high = dice.choice(((0.9, 1.1), (1.1, 3.2), (0.02, 0.9), (0.02, 0.9)))
    chars = int(dice.uniform(low, high) * LIMIT * CHARS_A_TOKEN)
    tenant, path = dice.choice(TENANTS), dice.choice(PATHS)
    return tenant, path, call(path, texts.piece(tenant, chars), 60, dice.random() < 0.5)


async def gate_on(sources: list[str], requests: int) -> dict[str, Any]:
    """The incident's fault behind the gate; then, to see the fault is there, without the gate."""
    held = await _boundary(sources, requests, small("to_finish"))
    control = await _boundary(sources, requests // 20, small("to_finish", "server_info"))
    return {"gate": held, "control": control}


async def _boundary(sources: list[str], requests: int, sim: SimulateSettings) -> dict[str, Any]:
    texts = Texts(sources, 11)
    async with rig(sim, OFF) as live:
        asked = [mixed(texts) for _ in range(requests)]
        over = [tokens_of(live.engine, path, body) > LIMIT for _, path, body in asked]
        replies = await side_by_side((live.ask(*one) for one in asked), AT_ONCE)
        truths = await live.truths()
        reached = [truths[reply.request_id] for reply in replies if reply.request_id in truths]
        pairs = list(zip(over, replies, strict=True))
        return {
            "requests": requests,
            "over_limit": sum(over),
            "over_400": share(sum(reply.status == 400 for long, reply in pairs if long), sum(over)),
            "fit_200": share(
                sum(reply.success for long, reply in pairs if not long), requests - sum(over)
            ),
            "longest_prompt_at_engine": live.longest_prompt,
            "leaked_answers": sum(truth.leaked for truth in reached),
            "leaked_tokens": sum(sum(truth.copied.values()) for truth in truths.values()),
            "known_to_oracle": len(reached),
        }


async def server_info(sources: list[str], requests: int) -> dict[str, Any]:
    """A stated limit that is too high: how many get through before the true one is learnt."""
    cases = {
        "refuses, whole answers": (("server_info",), False),
        "refuses, streams": (("server_info",), True),
        "leaks": (("server_info", "to_finish"), True),
    }
    return {
        name: await _overstated(sources, requests, small(*faults), stream)
        for name, (faults, stream) in cases.items()
    }


async def _overstated(
    sources: list[str], requests: int, sim: SimulateSettings, stream: bool
) -> dict[str, Any]:
    texts = Texts(sources, 12)
    async with rig(sim, OFF) as live:
        replies = []
        for number in range(requests):
            tenant = TENANTS[number % len(TENANTS)]
            body = call(CHAT, texts.piece(tenant, 7_000), 40, stream)
            replies.append(await live.ask(tenant, CHAT, body))
        lengths = live.engine.counters.prompt_lengths
        return {
            "over_limit": requests,
            "reached_engine": sum(length > LIMIT for length in lengths),
            "answered_400": sum(reply.status == 400 for reply in replies),
            "successes": sum(reply.success for reply in replies),
            "leaked": sum(truth.leaked for truth in (await live.truths()).values()),
            "gate_exit": await _deploy_gate(live),
        }


async def _deploy_gate(live: Rig) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "gate", "--backend", live.engine.url,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    return await process.wait()


async def clean(sources: list[str], requests: int) -> dict[str, Any]:
    """Every check on and nothing wrong: what is withheld."""
    texts = Texts(sources, 13)
    sim = small(context=32_768, prefill_pool=65_536, decode_pool=131_072, mean_answer=80)
    async with rig(sim, ALL) as live:
        asked = []
        for _ in range(requests):
            tenant = texts.dice.choice(TENANTS)
            path = texts.dice.choice((CHAT, CHAT, COMPLETIONS, MESSAGES, RESPONSES))
            text = texts.piece(tenant, texts.dice.randrange(100, 6_000))
            asked.append((tenant, path, call(path, text, 200, texts.dice.random() < 0.5)))
        replies = await side_by_side((live.ask(*one) for one in asked), AT_ONCE)
        kinds = [incident["kind"] for incident in await live.incidents()]
        return {
            "withheld": share(sum(reply.withheld for reply in replies), requests),
            "complete": share(sum(reply.success for reply in replies), requests),
            "incidents": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            "leaked": sum(truth.leaked for truth in (await live.truths()).values()),
            "odd": sorted({_odd(reply) for reply in replies if not reply.success})[:5],
        }


def _odd(reply: Reply) -> str:
    try:
        code = json.loads(reply.raw)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        code = "?"
    return f"{reply.status} {code}"
