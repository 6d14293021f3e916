"""Parts about answers: swapped, empty, or from a prefix cache that ignores salts."""

from __future__ import annotations

from typing import Any

from benchmarks.integrity.boundary import small
from benchmarks.integrity.rig import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    OFF,
    RESPONSES,
    TENANTS,
    Reply,
    Rig,
    Texts,
    call,
    rig,
    side_by_side,
)
from benchmarks.integrity.stats import share
from gateway.core.spotcheck import AGREED
from gateway.simulate import INSTANT, Faults, SimulateSettings

ALL_PATHS = (CHAT, COMPLETIONS, MESSAGES, RESPONSES, GENERATE)
BLOCK = {"action": "block"}
LESSONS = 17
USAGE_CHARS = ((300, 301), (100, 2_500))
CACHED_CHARS = ((200, 500), (500, 1_000), (1_000, 2_000), (2_000, 8_000))


async def swap(sources: list[str], requests: int) -> dict[str, Any]:
    """Answers under way at once change places: by dialect, those that reached the wrong client."""
    found = {}
    count = requests // len(ALL_PATHS)
    for path in ALL_PATHS:
        async with rig(small("swap"), OFF | {"binding": BLOCK}) as live:
            replies, swapped = await _swapped(live, Texts(sources, 31), path, (300, 301), count)
        withheld = sum(reply.before_first_byte for reply in replies)
        found[path] = {
            "answers": count,
            "swapped": swapped,
            "caught": share(min(withheld, swapped), swapped),
            "withheld_beyond": max(0, withheld - swapped),
        }
    return found


async def swap_usage(sources: list[str], requests: int) -> dict[str, Any]:
    """The same where the answer's id tells nothing: what its count of the prompt tells."""
    found = {}
    count = requests // len(USAGE_CHARS)
    for low, high in USAGE_CHARS:
        usage = {"prompt_tokens": {"sample": 1.0, **BLOCK}}
        async with rig(small("swap"), OFF | usage) as live:
            texts = Texts(sources, 34)
            for _ in range(AGREED):  # one at a time, so that none finds another to swap with
                text = texts.piece(TENANTS[0], low)
                await live.ask(TENANTS[0], MESSAGES, call(MESSAGES, text, 30, False))
            replies, swapped = await _swapped(live, texts, MESSAGES, (low, high), count)
            differing = await live.checked("prompt_tokens", "mismatch")
        withheld = [reply for reply in replies if reply.withheld]
        found[f"{low} to {high}"] = {
            "answers": count,
            "swapped": swapped,
            "differing": share(differing, swapped),
            "withheld": share(len(withheld), swapped),
            "before_first_byte": sum(reply.before_first_byte for reply in withheld),
        }
    return found


async def _swapped(
    live: Rig, texts: Texts, path: str, chars: tuple[int, int], count: int
) -> tuple[list[Reply], int]:
    """Requests of ``chars`` characters, 16 at a time, half of them streams; how many swapped."""

    async def one() -> Reply:
        tenant = texts.dice.choice(TENANTS)
        text = texts.piece(tenant, texts.dice.randrange(*chars))
        return await live.ask(tenant, path, call(path, text, 30, texts.dice.random() < 0.5))

    replies = await side_by_side((one() for _ in range(count)), 16)
    swapper = live.engine.service.swapper
    return replies, swapper.swapped if swapper else 0


async def empty200(sources: list[str], requests: int) -> dict[str, Any]:
    """Successes without content or finish reason: those that a client takes for answers."""
    found = {}
    texts = Texts(sources, 32)
    async with rig(small("empty200"), OFF | {"completeness": BLOCK}) as live:
        for path in ALL_PATHS:
            count = requests // len(ALL_PATHS)
            replies = [
                await live.ask(
                    tenant, path, call(path, texts.piece(tenant, 300), 30, number % 2 == 0)
                )
                for number in range(count)
                for tenant in (texts.dice.choice(TENANTS),)
            ]
            found[path] = share(sum(not reply.success for reply in replies), count)
    return found


async def salt(sources: list[str], pairs: int) -> dict[str, Any]:
    """One tenant sends what another has sent: the pages come out of the other's cache."""
    return {
        "salt": await _salt(sources, pairs, Faults(salt=True)),
        "cache_silent": await _salt(sources, pairs // 3, Faults(cache_silent=True)),
        "none": await _salt(sources, pairs // 3, Faults()),
    }


def roomy(faults: Faults) -> SimulateSettings:
    """An engine whose prefix cache forgets nothing here."""
    return SimulateSettings(
        faults=faults,
        timing=INSTANT,
        context=65_536,
        prefill_pool=1 << 20,
        decode_pool=1 << 18,
    )


async def _salt(sources: list[str], pairs: int, faults: Faults) -> dict[str, Any]:
    texts = Texts(sources, 33)
    rows: list[tuple[int, int, Reply]] = []
    async with rig(roomy(faults), OFF | {"cached_tokens": BLOCK}) as live:
        for _ in range(LESSONS):
            await live.chat(TENANTS[0], texts.piece(TENANTS[0], 2_000), 4)
        for number in range(pairs):
            first = TENANTS[number % len(TENANTS)]
            second = TENANTS[(number + 1 + texts.dice.randrange(18)) % len(TENANTS)]
            low, high = CACHED_CHARS[number % len(CACHED_CHARS)]
            text = f"{number} {texts.piece(first, texts.dice.randrange(low, high))}"
            await live.chat(first, text, 4)
            reply = await live.ask(second, CHAT, call(CHAT, text, 4, number % 8 < 4))
            cached = (await live.truths())[reply.request_id].cached_tokens
            rows.append((number % len(CACHED_CHARS), cached, reply))
    return {
        "lessons": LESSONS,
        "pairs": pairs,
        "engine_reported_cached": sum(cached > 0 for _, cached, _ in rows),
        "caught": share(sum(reply.withheld for *_, reply in rows), pairs),
        "by_chars": [
            {
                "from": low,
                "to": high,
                "caught": share(
                    sum(reply.withheld for band, _, reply in rows if band == number),
                    sum(band == number for band, *_ in rows),
                ),
            }
            for number, (low, high) in enumerate(CACHED_CHARS)
        ],
    }
