"""The discovered limit is the engine's own, to the token, on every dialect it speaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from engines import live

WORD = " apple"  # one token wherever it stands after another one
WORD_ID = 23268


def _chat(n: int) -> dict[str, Any]:
    content = "x" + WORD * n
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


@dataclass(frozen=True)
class Shape:
    """A request with ``n`` more tokens than with 0."""

    path: str
    build: Callable[[int], dict[str, Any]]


SHAPES: Mapping[str, Shape] = {
    "chat": Shape("/v1/chat/completions", _chat),
    "completions, text": Shape(
        "/v1/completions", lambda n: {"prompt": "x" + WORD * n, "max_tokens": 1}
    ),
    "completions, ids": Shape(
        "/v1/completions", lambda n: {"prompt": [WORD_ID] * (n + 1), "max_tokens": 1}
    ),
    "responses": Shape(
        "/v1/responses", lambda n: {"input": "x" + WORD * n, "max_output_tokens": 3}
    ),
    "messages": Shape("/v1/messages", _chat),
    "generate, text": Shape(
        "/generate", lambda n: {"text": "x" + WORD * n, "sampling_params": {"max_new_tokens": 1}}
    ),
    "generate, ids": Shape(
        "/generate",
        lambda n: {"input_ids": [WORD_ID] * (n + 1), "sampling_params": {"max_new_tokens": 1}},
    ),
}
NATIVE = ("generate, text", "generate, ids")


def _request(shape: Shape, n: int, *, stream: bool) -> dict[str, Any]:
    return {"model": live.MODEL, **shape.build(n), "stream": stream}


async def _base(pair: live.Pair, shape: Shape) -> int:
    """The length of the shortest one, by the engine's own word as the gateway read it."""
    answer = await pair.through(shape.path, _request(shape, 0, stream=False))
    assert answer.status == 200, answer.words
    observation = (await pair.exchange(answer)).observation
    assert observation is not None
    assert observation.usage is not None
    assert observation.usage.prompt_tokens is not None
    return observation.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", SHAPES)
async def test_limit_is_the_engines_own(pair, findings, name, stream):
    """One token under, at and over: only the last is refused, and the engine sees none of it."""
    if name in NATIVE and pair.engine.recipe.engine != "sglang":
        pytest.skip("an endpoint of SGLang's")
    shape = SHAPES[name]
    base = await _base(pair, shape)
    seen: dict[str, dict[str, str]] = {}
    for off in (-1, 0, 1):
        body = _request(shape, pair.limit + off - base, stream=stream)
        before = pair.tap.to_engine
        through = await pair.through(shape.path, body)
        reached = pair.tap.to_engine - before
        direct = await pair.direct(shape.path, body)
        seen[f"{off:+d}" if off else "0"] = {
            "gateway": live.statement(through),
            "direct": live.statement(direct),
            "bytes_to_engine": str(reached),
        }
        assert through.status == (400 if off == 1 else 200), (off, through.words)
        assert (reached == 0) == (off == 1)
        if off == 1:
            _names_both_numbers(through, pair.limit)
            assert live.refused(direct), "the engine takes more"
        else:
            assert not live.refused(direct), direct.words
            await _is_exact(pair, through, pair.limit + off)
    facts = findings.setdefault(pair.engine.recipe.engine, {})
    facts["discovery"] = pair.discovery
    facts.setdefault("limits", {})[f"{name}{', stream' if stream else ''}"] = seen


async def _is_exact(pair: live.Pair, answer: live.Answer, length: int) -> None:
    exchange = await pair.exchange(answer)
    assert exchange.prompt_tokens == length
    [check] = [check for check in exchange.checks if check.check == "prompt_tokens"]
    assert (check.verdict, check.returned) == ("ok", length)


def _names_both_numbers(answer: live.Answer, limit: int) -> None:
    assert answer.headers["x-poolgate-limit"] == str(limit)
    message = json.loads(answer.body)["error"]["message"]
    assert str(limit) in message
    assert str(limit + 1) in message


async def test_readiness_states_the_limit(pair):
    async with pair.http.get(pair.app.admin_url + "/status") as answer:
        [backend] = (await answer.json())["backends"]
    assert backend["limit"]["max_prompt_tokens"] == pair.limit
    assert 0 < pair.limit < live.CONTEXT
