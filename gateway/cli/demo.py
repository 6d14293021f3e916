"""``poolgate demo``: the incident in a minute, on a simulated leaky engine, each step checked.

Nothing in it is staged: the engine really copies from pages that other tenants left, its oracle
says out of band whose they were, and each step asserts what it narrates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import uvloop

from gateway.app import App
from gateway.settings import NoSecrets, Settings, parse
from gateway.simulate import Faults, Handle, SimulateSettings, Timing, running
from gateway.simulate.oracle import Truth

CONTEXT, PREFILL_POOL, DECODE_POOL = 131_072, 32_768, 98_304
PREFILL_SPEED = 30_000.0  # tokens a second
TENANTS = ("amber", "birch", "cedar", "dune")
ROUNDS = 5  # prompts a tenant: together they go once through decode's pool
LESSONS = 50  # answers the latency check learns from; it judges after 48
MODEL = "poolgate-sim"


class StepFailed(Exception):
    """A step did not hold; the message says which expectation."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "demo",
        help="the incident and its cure, in under a minute",
        description="A simulated leaky engine and a gateway in front of it, narrated: fits -> 200,"
        " over -> 400, gate off -> leak caught and withheld. Exit 0 only if every step held.",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulated engine")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit status 0 if every step held, else 1."""
    try:
        uvloop.run(_tell(args.seed))
    except StepFailed as failure:
        print(f"\nFAILED: {failure}")
        return 1
    print("\nEvery step held.")
    return 0


async def _tell(seed: int) -> None:
    _say("An engine with a KV pool smaller than the context it advertises,")
    _say(f"split into prefill ({PREFILL_POOL} tokens of KV) and decode ({DECODE_POOL}),")
    _say("and with the bug of August 2026: a rejected prompt is not finished.")
    async with aiohttp.ClientSession() as http:
        async with running(_engine(seed, Faults(to_finish=True))) as engine:
            victims = await _without_the_gateway(Stage(http, engine, engine.url))
            async with _gateway(engine.url) as app:
                await _with_the_gateway(Stage(http, engine, app.data_url), app)
        liar = _engine(seed, Faults(to_finish=True, server_info=True))
        async with running(liar) as engine, _gateway(engine.url) as app:
            await _with_a_wrong_limit(Stage(http, engine, app.data_url), app, victims)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a step plays: a client, the engine behind it all, and the URL the client calls."""

    http: aiohttp.ClientSession
    engine: Handle
    url: str

    async def chat(
        self, text: str, *, stream: bool = False, max_tokens: int = 48
    ) -> tuple[int, str, dict[str, str]]:
        """Status, body and headers of a chat with one user message."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "stream": stream,
        }
        async with self.http.post(self.url + "/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.text(), dict(answer.headers)

    @property
    def prompts_seen(self) -> int:
        """How many prompts have reached the engine."""
        return len(self.engine.counters.prompt_lengths)


async def _without_the_gateway(stage: Stage) -> list[str]:
    """What callers got in August: another tenant's text with status 200."""
    _step("1", "Without poolgate")
    secrets = [_private_text(tenant, year) for year in range(ROUNDS) for tenant in TENANTS]
    for text in secrets:
        status, _, _ = await stage.chat(text)
        _expect(status == 200, "an ordinary prompt is answered")
    _say(f"{len(TENANTS)} tenants have sent {len(secrets)} private prompts.")
    over = _filler(PREFILL_POOL + 2_000)
    status, body, _ = await stage.chat(over, max_tokens=96)
    answer = json.loads(body)
    text = answer["choices"][0]["message"]["content"]
    _expect(status == 200, "the over-long prompt got status 200")
    truth = _last_truth(stage.engine)
    _expect(truth.leaked, "the engine's oracle says that foreign pages were read")
    _say(f"A prompt of {answer['usage']['prompt_tokens']} tokens: HTTP 200, right token count,")
    _say(f"and this text, copied from {len(truth.copied)} other request(s):")
    _say(f'    "{" ".join(text.split())[:150]}..."')
    return secrets


async def _with_the_gateway(stage: Stage, app: App) -> None:
    """The limit discovered, the boundary exact, nothing over it forwarded."""
    _step("2", "With poolgate in front of the same engine")
    limit = app.generation.runtime.backends[0].capacity()
    tokens = getattr(limit, "tokens", 0)
    _expect(tokens == PREFILL_POOL - 7, f"the limit is the prefill pool - 7 (found {limit})")
    _say(f"discovered: longest prompt {tokens} tokens (prefill pool {PREFILL_POOL} - 7),")
    _say(f"although the engine advertises {CONTEXT}.")
    fits, over = await _texts_at(stage, tokens)
    before = stage.prompts_seen
    status, body, headers = await stage.chat(fits)
    _expect(status == 200, "a prompt of exactly the limit is answered")
    _expect(not _last_truth(stage.engine).leaked, "and holds no foreign text")
    _say(f"{json.loads(body)['usage']['prompt_tokens']} tokens -> 200, nothing foreign in it.")
    _expect(stage.prompts_seen == before + 1, "one prompt reached the engine")
    for stream in (False, True):
        status, body, headers = await stage.chat(over, stream=stream)
        _expect(status == 400, "one token more is a 400")
        _expect(headers["Content-Type"] == "application/json", "and no stream was opened")
    error = json.loads(body)["error"]
    _expect(error["code"] == "context_length_exceeded", "with the code SDKs know")
    _expect(stage.prompts_seen == before + 1, "and nothing reached the engine")
    _say(f'one more -> 400 "{error["message"][:95]}..."')
    _say("streaming or not, and the engine never saw it.")


async def _with_a_wrong_limit(stage: Stage, app: App, victims: list[str]) -> None:
    """The gate defeated: the engine states its context as its limit. Physics still catches it."""
    _step("3", "Gate off: the engine lies about its limit")
    limit = app.generation.runtime.backends[0].capacity()
    _expect(getattr(limit, "tokens", 0) > PREFILL_POOL, "the stated limit exceeds the pool")
    _say(f"it now states {getattr(limit, 'tokens', 0)} tokens; its pool is unchanged.")
    for text in victims:
        await stage.chat(text)
    for number in range(LESSONS):
        status, _, _ = await stage.chat(_filler(4_500 + number * 250), stream=True, max_tokens=4)
        _expect(status == 200, "ordinary prompts are answered while the gateway learns")
    ceiling = app.generation.runtime.backends[0].prefill.ceiling() or 0
    _say(f"learnt from {LESSONS} streams: this engine prefills at most {ceiling:,.0f} tokens/s.")
    for stream in (False, True):
        status, body, _ = await stage.chat(_filler(60_000 + stream), stream=stream, max_tokens=16)
        exposed = _last_truth(stage.engine).exposed_tokens
        _expect(exposed > 0, "the engine decoded over foreign pages")
        _expect(status == 502, f"the answer was withheld (got {status})")
        error = json.loads(body)["error"]
        _expect(error["code"] == "response_withheld", "as an integrity refusal")
        _expect("choices" not in body, "without a word of it")
    incident = list(app.recorder.incidents)[-1]
    finding = incident["finding"]
    _say("a prompt of about 60,000 tokens was answered from foreign pages, too fast to be true:")
    _say(
        f"first byte after {finding['returned'] * 1000:.0f} ms; prefilling it takes at least"
        f" {finding['expected'] * 1000:.0f} ms."
    )
    _say(f"-> 502 response_withheld, incident {error['incident']}, 0 bytes released.")


@contextlib.asynccontextmanager
async def _gateway(engine_url: str) -> AsyncIterator[App]:
    app = App()
    try:
        await app.start(_settings(engine_url))
        yield app
    finally:
        await app.stop()


def _settings(engine_url: str) -> Settings:
    written = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "backends": [{"name": "sim", "url": engine_url, "tokenizer": "poolgate-tiny"}],
        "integrity": {"latency": {"action": "hold"}},
    }
    return parse(written, NoSecrets())


def _engine(seed: int, faults: Faults) -> SimulateSettings:
    return SimulateSettings(
        seed=seed,
        context=CONTEXT,
        prefill_pool=PREFILL_POOL,
        decode_pool=DECODE_POOL,
        faults=faults,
        timing=Timing(base=0.005, prefill_tokens_per_second=PREFILL_SPEED, inter_token=0.0005),
    )


def _private_text(tenant: str, year: int) -> str:
    """A tenant's prompt of about 6,000 tokens, recognisable in an answer."""
    lines = (f"Private to {tenant}, account of year {year}, line {n}." for n in range(300))
    return "\n".join(lines)


def _filler(tokens: int) -> str:
    """A prompt of about ``tokens`` tokens that begins like no other."""
    return f"{tokens} words:" + " a" * tokens


async def _texts_at(stage: Stage, limit: int) -> tuple[str, str]:
    """Texts whose chats have exactly ``limit`` and ``limit + 1`` tokens, by the engine's count."""

    async def count(text: str) -> int:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        async with stage.http.post(stage.engine.url + "/tokenize", json=body) as answer:
            return int((await answer.json())["count"])

    base = "word" * 4
    missing = limit - await count(base)
    fits = base + " a" * missing
    over = fits + " a"
    _expect(await count(fits) == limit, "the text of the limit's length is exact")
    _expect(await count(over) == limit + 1, "and one token more is one token more")
    return fits, over


def _last_truth(engine: Handle) -> Truth:
    return list(engine.truths.values())[-1]


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise StepFailed(f"expected that {what}")


def _say(line: str) -> None:
    print(f"   {line}", flush=True)


def _step(number: str, title: str) -> None:
    print(f"\n{number}. {title}", flush=True)
