"""The incident itself, on the SGLang that had it: prefill and decode workers behind its router.

The model copies (scripts/engines/copying_model.py): each token of its answers stands in the KV that
it was given, so words that are not in the asking prompt are another tenant's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import aiohttp
import pytest

from engines import live
from engines.test_gate import gate
from engines.test_probe import probe
from gateway.core.lexicon import lexicon
from gateway.types import Verdict

PD = pytest.mark.parametrize("engine", [live.SGLANG_PD], indirect=True, ids=["sglang_pd"])
PREFILL_LIMIT = live.CONTEXT // 4 - 7
CHAT = "/v1/chat/completions"
ANSWER = 60  # tokens
# Lengths that prefill refuses and decode does not.
ASKED = (PREFILL_LIMIT + 1, *random.Random(155).sample(range(PREFILL_LIMIT + 2, 950), 11))
TEMPLATE = 8  # tokens that the chat template adds
VICTIMS = tuple(f"victim{n}" for n in range(8))
ASKING = "asking"
FOREIGN = 4  # words in a row that only their owner has
LONG = 32  # from so many in a row on, fingerprints are sure to know them
TENANTS: Mapping[str, Any] = {
    "tenants": [
        {"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]}
        for name in (*VICTIMS, ASKING)
    ]
}
# An operator who states the advertised context, where nothing says what prefill holds.
GATE_OFF = {"backend": {"engine": "openai"}, "limit": {"max_prompt_tokens": live.CONTEXT - 7}}
CHECKS = {
    "latency": {"action": "off"},
    "fingerprints": {"action": "block", "learning": "0s"},
    "sentinel": {"action": "flag"},
}


def secret(name: str) -> list[str]:
    """A tenant's words, a token each, none twice."""
    return random.Random(name).sample(lexicon().words, 150)


def asking(text: str, *, stream: bool = False) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {"model": live.MODEL, "messages": messages, "max_tokens": ANSWER, "temperature": 0}
    return {**body, "stream": stream}


def over_long(tokens: int, *, stream: bool = False) -> dict[str, Any]:
    """A prompt of so many tokens and none of a victim's words."""
    return asking("x" + " apple" * (tokens - TEMPLATE - 1), stream=stream)


def owners(text: str, run: int = FOREIGN) -> set[str]:
    """The victims of whose words so many in a row are in a text."""
    heard = f" {' '.join(text.replace('!', ' ').split())} "
    found = set()
    for name in VICTIMS:
        words = secret(name)
        runs = (" ".join(words[at : at + run]) for at in range(len(words) - run + 1))
        if any(f" {each} " in heard for each in runs):
            found.add(name)
    return found


def text_of(answer: live.Answer) -> str:
    """What a client reads, of a whole answer, a stream, or an error."""
    lines = [line[5:] for line in answer.body.splitlines() if line.startswith(b"data:")]
    parts = [json.loads(line) for line in lines or [answer.body] if line.strip() != b"[DONE]"]
    choices = [choice for part in parts for choice in part.get("choices", ())]
    said = (choice.get("message") or choice.get("delta") or {} for choice in choices)
    return "".join(each.get("content") or "" for each in said)


async def hear(pair: live.Pair, body: Mapping[str, Any]) -> live.Answer:
    """The answer to the tenant that asks; of a stream that is cut, what came before."""
    async with pair.http.post(pair.url + CHAT, json=body, headers={"x-api-key": ASKING}) as answer:
        heard = b""
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async for part in answer.content.iter_any():
                heard += part
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return live.Answer(answer.status, headers, heard)


async def victims_ask(pair: live.Pair) -> None:
    """Each victim leaves its prompt in decode's memory, and is told nothing of the others."""
    asked = (pair.through(CHAT, asking(" ".join(secret(name))), key=name) for name in VICTIMS)
    for name, answer in zip(VICTIMS, await asyncio.gather(*asked), strict=True):
        assert answer.status == 200, answer.words
        assert owners(text_of(answer)) <= {name}


@PD
async def test_the_engine_answers_over_long_prompts_from_others_kv(engine, findings):
    """What happened on 27 August 2026: status 200, the usage expected, and whose text is it?"""
    seen = {}
    async with live.gateway_before(engine, **TENANTS) as pair:
        await victims_ask(pair)
        await victims_ask(pair)  # a round is over half of decode's pool
        for tokens in ASKED:
            _, answer = await asyncio.gather(
                victims_ask(pair), pair.direct(CHAT, over_long(tokens))
            )
            assert answer.status == 200, answer.words
            assert json.loads(answer.body)["usage"]["prompt_tokens"] == tokens
            seen[tokens] = sorted(owners(text_of(answer)))
    findings.setdefault("sglang_pd", {})["leaks"] = seen
    assert sum(map(bool, seen.values())) > len(ASKED) / 2


@PD
async def test_the_gate_blocks_it(engine, findings):
    """By what the workers say of themselves, and after a leak by what they counted."""
    async with live.gateway_before(engine) as pair:
        assert (await pair.direct(CHAT, over_long(ASKED[-1]))).status == 200
    code, report = await gate(engine)
    findings.setdefault("sglang_pd", {})["gate"] = report
    assert code == 1
    failed = {finding["check"] for finding in report["findings"] if finding["level"] == "fail"}
    assert failed == {"pool", "limit", "version", "transfer"}


@PD
async def test_the_probe_sees_the_leak(engine, findings):
    code, report = await probe(engine, "--tokenizer", live.TOKENIZER, "--long")
    findings.setdefault("sglang_pd", {})["probe"] = report
    assert (code, report["verdict"]) == (1, "fault")
    verdicts = {(check["check"], check["verdict"]) for check in report["checks"]}
    assert ("over", "leak") in verdicts
    assert not {("within", "leak"), ("within", "mismatch")} & verdicts


@PD
async def test_no_over_long_prompt_reaches_it(engine):
    """The limit is prefill's, asked through the router; nobody reads a victim's words."""
    async with live.gateway_before(engine, **TENANTS) as pair:
        assert pair.limit == PREFILL_LIMIT
        await victims_ask(pair)
        await victims_ask(pair)
        for tokens in ASKED:
            before = pair.tap.to_engine
            refused = await pair.through(CHAT, over_long(tokens), key=ASKING)
            assert refused.status == 400
            assert json.loads(refused.body)["error"]["code"] == "context_length_exceeded"
            assert pair.tap.to_engine == before
        fits = await pair.through(CHAT, over_long(PREFILL_LIMIT), key=ASKING)
        assert fits.status == 200, fits.words
        assert not owners(text_of(fits))
        assert (await pair.exchange(fits)).prompt_tokens == PREFILL_LIMIT


@PD
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_leaks_where_the_limit_is_wrong_is_withheld(engine, findings, stream):
    """By the other tenants' words. The count of the prompt is right, and shows nothing."""
    found = []
    async with live.gateway_before(engine, integrity=CHECKS, **GATE_OFF, **TENANTS) as pair:
        await victims_ask(pair)
        await victims_ask(pair)
        for tokens in ASKED:
            answer = await hear(pair, over_long(tokens, stream=stream))
            verdicts = {one.check: one.verdict for one in (await pair.exchange(answer)).checks}
            found.append({**verdicts, "passed": sorted(owners(text_of(answer)))})
            assert verdicts["prompt_tokens"] != Verdict.MISMATCH
            assert not owners(text_of(answer), LONG)
    findings.setdefault("sglang_pd", {})[f"gate off, {'stream' if stream else 'whole'}"] = found
    withheld = [each for each in found if each.get("fingerprints") == Verdict.LEAK]
    assert len(withheld) > len(ASKED) / 2
