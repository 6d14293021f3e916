"""Parts about foreign pages: what latency withholds over the pool, what text shows under it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

from benchmarks.integrity.boundary import CHARS_A_TOKEN
from benchmarks.integrity.detection import normal
from benchmarks.integrity.rig import OFF, SECRET, TENANTS, Reply, Rig, Texts, rig, side_by_side
from benchmarks.integrity.stats import share
from gateway.core.latency import PrefillModel, judge_ttft
from gateway.core.lexicon import lexicon
from gateway.core.sentinel import Sentinels
from gateway.edge.sentinels import PREAMBLE
from gateway.simulate import INSTANT, Faults, SimulateSettings, Timing
from gateway.simulate.oracle import Truth
from gateway.simulate.pages import FreeOrder
from gateway.simulate.text import Habits

POOL = 24_576
LESSONS = 60
EDGES = (1, 40, 83, 112, 140, 175, 250, 1_000_000)  # bytes of the longest run
MARKERS = {  # where markers stand: after so many characters of a prompt's text
    "at the start, as placed": None,
    "and at the end": 10_000,
    "and every 1,000 characters": 1_000,
    "and every 250 characters": 250,
}
DAY = 86_400.0  # the default epoch; the default lifetime is three
FORTY_TOKENS = 157  # bytes that 40 of qwen3's tokens are, as in docs/fingerprints.md
TEXT_CHECKS: dict[str, Any] = {
    **OFF,
    "secret": SECRET,
    "fingerprints": {"action": "flag", "learning": "0s"},
    "sentinel": {"place": "system_end", "scan": 1.0, "action": "flag"},
}


# --- over the pool, gate off --------------------------------------------------------------------


async def latency(sources: list[str], rounds: int) -> dict[str, Any]:
    """Prefill at a large model's pace."""
    return await _latency(sources, rounds, 10_000, (0.18, 0.4), 10)


async def latency_fast(sources: list[str], rounds: int) -> dict[str, Any]:
    """Prefill so fast that a busy host's own delays are as long."""
    return await _latency(sources, rounds, 40_000, (0.35, 0.8), 3)


async def _latency(
    sources: list[str], rounds: int, pace: float, fitting_pools: tuple[float, float], every: int
) -> dict[str, Any]:
    """Over-pool prompts beside others that fit; the engine states its context as the limit."""
    sim = SimulateSettings(
        context=131_072,
        prefill_pool=POOL,
        decode_pool=98_304,
        prefix_cache=False,
        faults=Faults(to_finish=True, server_info=True),
        timing=Timing(base=0.02, prefill_tokens_per_second=pace, inter_token=0.0),
    )
    texts = Texts(sources, 21)
    async with rig(sim, OFF | {"latency": {"action": "hold"}}) as live:
        for _ in range(LESSONS):
            await _fits(live, texts, *fitting_pools)
        over: list[Reply] = []
        fitting: list[Reply] = []
        for number in range(rounds):
            tenant = texts.dice.choice(TENANTS)
            jobs = [live.chat(tenant, _long(texts, tenant, 1.3, 2.4), 200)]
            if number % every == 0:
                jobs.append(_fits(live, texts, *fitting_pools))
            first, *others = await asyncio.gather(*jobs)
            over.append(first)
            fitting += others
        truths = await live.truths()
        await asyncio.sleep(2)  # the last records are being written
        timed = [one for one in live.records() if one["request_id"] in truths]
    true = [truths[reply.request_id] for reply in over]
    leaks = [reply for reply, truth in zip(over, true, strict=True) if truth.leaked]
    return {
        "over_pool": sum(truth.prompt_tokens > POOL - 7 for truth in true),
        "shortest": min(truth.prompt_tokens for truth in true),
        "longest": max(truth.prompt_tokens for truth in true),
        "leaks_held": share(sum(reply.before_first_byte for reply in leaks), len(leaks)),
        "over_pool_held": share(sum(reply.before_first_byte for reply in over), len(over)),
        "leaks_possible": _by_clean_answers(timed, {reply.request_id for reply in leaks}, truths),
        "fitting_held": share(sum(reply.withheld for reply in fitting), len(fitting)),
        "lessons": LESSONS,
        "pace": pace,
    }


def _by_clean_answers(
    timed: list[dict[str, Any]], leaks: set[str], truths: Mapping[str, Truth]
) -> dict[str, Any]:
    """What a model would have held of the same leaks that learns from clean answers alone."""
    model, found = PrefillModel(), 0
    for one in timed:
        tokens, ttft = truths[one["request_id"]].prompt_tokens, one["ttft_s"]
        if tokens < POOL - 7:
            model = model.learned(tokens, ttft)
        elif one["request_id"] in leaks:
            found += judge_ttft(model, tokens, ttft).suspect
    return share(found, len(leaks))


async def _fits(live: Rig, texts: Texts, low: float, high: float) -> Reply:
    tenant = texts.dice.choice(TENANTS)
    return await live.chat(tenant, _long(texts, tenant, low, high), 20)


def _long(texts: Texts, tenant: str, low: float, high: float) -> str:
    """So many pools of text, from pieces in no order: no prompt shares its beginning."""
    chars = int(texts.dice.uniform(low, high) * POOL * CHARS_A_TOKEN)
    return "\n".join(texts.piece(tenant, 3_000) for _ in range(chars // 3_000 + 1))


# --- text that is another's ---------------------------------------------------------------------


async def short_over_pool(sources: list[str], rounds: int) -> dict[str, Any]:
    """The incident at lengths latency cannot judge: fingerprints and sentinels have the text."""
    return await _short_over_pool(sources, rounds, Observed())


async def placements(sources: list[str], rounds: int) -> dict[str, Any]:
    """The same with more markers in each prompt than the gateway places, put there by clients."""
    found = {}
    for name, every in MARKERS.items():
        one = await _short_over_pool(sources, rounds // len(MARKERS), Observed(every))
        found[name] = {"leaked": one["leaked"], **one["all"]}
    return found


async def _short_over_pool(sources: list[str], rounds: int, seen: Observed) -> dict[str, Any]:
    sim = SimulateSettings(
        timing=INSTANT,
        context=8_192,
        prefill_pool=1_024,
        decode_pool=6_144,
        mean_answer=200,
        habits=Habits(mean_run=100),
        faults=Faults(to_finish=True, server_info=True),
    )
    texts = Texts(sources, 22)
    async with rig(sim, TEXT_CHECKS) as live:
        for number in range(rounds):
            asking = TENANTS[number % len(TENANTS)]
            for tenant in texts.dice.sample(TENANTS, 8):
                await seen.ask(live, texts, tenant, 3_000, 4)
            await asyncio.sleep(0.02)  # the last prompts are being remembered
            seen.judged.append(await seen.ask(live, texts, asking, 7_500, 200))
        return await seen.found(live)


async def early_free(sources: list[str], rounds: int) -> dict[str, Any]:
    """Clients that leave during prefill, and others who get the pages that are still written."""
    sim = SimulateSettings(
        context=8_192,
        prefill_pool=65_536,
        decode_pool=65_536,
        free_order=FreeOrder.LIFO,
        prefix_cache=False,
        mean_answer=200,
        habits=Habits(mean_run=100),
        faults=Faults(early_free=True),
        timing=Timing(base=0.0, prefill_tokens_per_second=6_000, inter_token=0.002),
    )
    texts, seen = Texts(sources, 23), Observed()
    async with rig(sim, TEXT_CHECKS) as live:

        async def one(number: int) -> None:
            leaving, staying = TENANTS[number % 20], TENANTS[(number + 7) % 20]
            await seen.ask(live, texts, leaving, 4_500, 20, cut_after=0.05)
            await asyncio.sleep(0.03)  # the gateway and the engine notice
            seen.judged.append(await seen.ask(live, texts, staying, 150, 200))

        await side_by_side(map(one, range(rounds)), 4)
        return await seen.found(live)


class Observed:
    """What was sent and answered, to be held against the oracle and the incidents.

    ``every``: after so many characters of a text its tenant's marker stands, as the gateway would
    write it, besides the one that the gateway itself places at the start.
    """

    def __init__(self, every: int | None = None) -> None:
        self.judged: list[Reply] = []
        self._every = every
        self._asked: list[bytes] = []

    async def ask(
        self, live: Rig, texts: Texts, tenant: str, chars: int, most: int, **more: float
    ) -> Reply:
        """One chat of a tenant's own text."""
        text = texts.piece(tenant, chars)
        if self._every is not None:
            text = _marked(text, tenant, self._every)
        self._asked.append(normal(text))
        body = {"messages": [{"role": "user", "content": text}], "model": "m"}
        return await live.ask(
            tenant, "/v1/chat/completions", body | {"stream": True, "max_tokens": most}, **more
        )

    async def found(self, live: Rig) -> dict[str, Any]:
        """Recall of each check by the longest run, and findings in answers that had none."""
        truths = await live.truths()
        kinds: dict[str, set[str]] = {}
        for incident in await live.incidents():
            kinds.setdefault(incident["request_id"], set()).add(incident["kind"])
        rows = [
            (self._run(reply, truths[reply.request_id]), kinds.get(reply.request_id, set()), reply)
            for reply in self.judged
            if reply.request_id in truths
        ]
        leaking = [(run, got) for run, got, reply in rows if truths[reply.request_id].leaked]
        harmless = [got for _, got, reply in rows if not truths[reply.request_id].leaked]
        long = [one for one in leaking if one[0] >= FORTY_TOKENS]
        return {
            "answers": len(rows),
            "leaked": len(leaking),
            "by_run": [
                {"from": low, "to": high - 1, **_recall([r for r in leaking if low <= r[0] < high])}
                for low, high in pairwise((0, *EDGES))
            ],
            "all": _recall(leaking),
            "forty_tokens_or_more": _recall(long),
            "false": share(sum(bool(got) for got in harmless), len(harmless)),
            "kinds": dict(Counter(kind for _, got, _ in rows for kind in got)),
        }

    def _run(self, reply: Reply, truth: Truth) -> int:
        """The longest stretch in common with another's prompt, in normal bytes; 0 if no leak."""
        if not truth.leaked:
            return 0
        answer = normal(reply.text)
        return max((_common(answer, text) for text in self._near(answer)), default=0)

    def _near(self, answer: bytes) -> list[bytes]:
        """The prompts that share 24 bytes with it; shorter runs count as none."""
        pieces = {answer[at : at + 24] for at in range(len(answer) - 23)}
        return [text for text in self._asked if any(piece in text for piece in pieces)]


def _marked(text: str, tenant: str, every: int) -> str:
    now = datetime.now(UTC).timestamp()
    numbers = Sentinels([SECRET.encode()], DAY, 3 * DAY, TENANTS).numbers(tenant, now)
    marker = PREAMBLE + lexicon().phrase(numbers) + "\n\n"
    return marker.join(text[at : at + every] for at in range(0, len(text), every)) + marker


def _recall(rows: list[tuple[int, set[str]]]) -> dict[str, Any]:
    return {
        "fingerprints": share(sum("fingerprints" in got for _, got in rows), len(rows)),
        "sentinel": share(sum("sentinel" in got for _, got in rows), len(rows)),
        "either": share(sum(bool(got) for _, got in rows), len(rows)),
    }


def _common(one: bytes, other: bytes) -> int:
    return SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size
