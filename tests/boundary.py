"""Requests of every dialect, placed within a few tokens of a limit by the engine's own count.

The count is the simulated engine's (its own tokeniser and conversions), not the gateway's, so a
mistake of ours shows as a request on the wrong side.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.simulate import chats
from gateway.simulate.tokeniser import Tokeniser

ALPHABETS = (
    [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "and",
        "then",
        "it",
        "sleeps",
        "until",
        "noon",
        "",
    ],
    ["def ", "return ", "self.", "x_1 = ", "()", "\n    ", "# note", "=="],
    ["北", "京", "大", "学", "。", "日本語", "한국어"],
    ["🙂", "🇩🇪", "👩‍👩‍👧", "e\u0301", "\u1e9b\u0323", "\U0001d1c0", "\u00c5"],
    ["<|im_end|>", "<|im_start|>user", "<|endoftext|>", "</think>", "<tool_call>", "text"],
    ["    ", "\n\n", "\t", " ", "a", "1234567", "0", "{{7*7}}", "{% raw %}", "\\u0041"],
    ["QmFzZTY0", "/+=", "ZGF0YQ", "deadbeef", "%2B", "&amp;", "<b>", "'", '"'],
)
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Find <it> & tell: 北京",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string", "enum": ["a", "b"]}, "n": {"type": "integer"}},
            "required": ["q"],
        },
    },
}


@dataclass(frozen=True)
class Case:
    """One request and its true length."""

    path: str
    body: dict[str, Any]
    tokens: int


Builder = Callable[[random.Random, str], dict[str, Any]]


def text(rng: random.Random, pieces: int) -> str:
    """Pieces from one or two alphabets."""
    chosen = rng.sample(ALPHABETS, rng.choice((1, 1, 2)))
    return "".join(rng.choice(rng.choice(chosen)) + rng.choice(("", " ")) for _ in range(pieces))


def _chat(rng: random.Random, filling: str) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": text(rng, 3)})
    for _ in range(rng.choice((0, 0, 1, 2))):
        messages.append({"role": "user", "content": text(rng, 2)})
        messages.append({"role": "assistant", "content": text(rng, 2)})
    content: Any = filling
    if rng.random() < 0.3:
        cut = rng.randint(0, len(filling))
        content = [{"type": "text", "text": part} for part in (filling[:cut], filling[cut:])]
    messages.append({"role": "user", "content": content})
    if rng.random() < 0.2:
        messages.insert(
            -1,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look_up", "arguments": '{"q": "a <b> ü"}'},
                    }
                ],
            },
        )
        messages.insert(-1, {"role": "tool", "tool_call_id": "c1", "content": text(rng, 2)})
    body: dict[str, Any] = {"messages": messages, "max_tokens": 1}
    if rng.random() < 0.25:
        body["tools"] = [TOOL]
        body["tool_choice"] = rng.choice(("auto", "none"))
    if rng.random() < 0.2:
        body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    return body


def _messages(rng: random.Random, filling: str) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": filling}], "max_tokens": 1}
    if rng.random() < 0.5:
        body["system"] = rng.choice((text(rng, 3), [{"type": "text", "text": text(rng, 3)}]))
    if rng.random() < 0.3:
        body["messages"][0]["content"] = [{"type": "text", "text": filling}]
    if rng.random() < 0.3:
        body["messages"][:0] = [
            {"role": "user", "content": text(rng, 2)},
            {"role": "assistant", "content": text(rng, 2) + "."},
        ]
    return body


def _responses(rng: random.Random, filling: str) -> dict[str, Any]:
    body: dict[str, Any] = {"input": filling, "max_output_tokens": 1}
    if rng.random() < 0.5:
        body["instructions"] = text(rng, 3)
    if rng.random() < 0.2:
        body["tools"] = [{"type": "function", **TOOL["function"]}]
    if rng.random() < 0.4:
        body["input"] = [{"role": "user", "content": [{"type": "input_text", "text": filling}]}]
    return body


def _completions(rng: random.Random, filling: str) -> dict[str, Any]:
    prompt: Any = filling
    if rng.random() < 0.3:
        prompt = [text(rng, 3), filling]
    return {"prompt": prompt, "max_tokens": 1}


def _generate(rng: random.Random, filling: str) -> dict[str, Any]:
    return {"text": filling, "sampling_params": {"max_new_tokens": 1}}


def _embeddings(rng: random.Random, filling: str) -> dict[str, Any]:
    return {"input": rng.choice((filling, [filling, "short"]))}


def _longest(tokeniser: Tokeniser, texts: Any) -> int:
    given = [texts] if isinstance(texts, str) else texts
    return max(len(ids) for ids in tokeniser.encode(given))


DIALECTS: dict[str, tuple[str, Builder, Callable[[Tokeniser, dict[str, Any]], int]]] = {
    "openai_chat": (
        "/v1/chat/completions",
        _chat,
        lambda t, body: len(t.encode_chat(chats.from_openai(body))),
    ),
    "openai_completions": (
        "/v1/completions",
        _completions,
        lambda t, body: _longest(t, body["prompt"]),
    ),
    "openai_responses": (
        "/v1/responses",
        _responses,
        lambda t, body: len(
            t.encode_chat(chats.from_responses(body, inline_system=t.inline_system))
        ),
    ),
    "openai_embeddings": (
        "/v1/embeddings",
        _embeddings,
        lambda t, body: _longest(t, body["input"]),
    ),
    "anthropic_messages": (
        "/v1/messages",
        _messages,
        lambda t, body: len(
            t.encode_chat(chats.from_anthropic(body, inline_system=t.inline_system))
        ),
    ),
    "sglang_generate": ("/generate", _generate, lambda t, body: _longest(t, body["text"])),
}


def case(
    dialect: str, tokeniser: Tokeniser, rng: random.Random, limit: int, over: bool, spread: int = 6
) -> Case:
    """A request whose true length is 1..spread over the limit, or 0..spread-1 under it."""
    path, build, count = DIALECTS[dialect]
    wanted = range(limit + 1, limit + 1 + spread) if over else range(limit - spread + 1, limit + 1)
    while True:
        seed, filling = rng.random(), text(rng, rng.randint(limit // 4, limit))
        low, high = 0, len(filling)
        while low <= high:
            middle = (low + high) // 2
            body = {"model": "m", **build(random.Random(seed), filling[:middle])}
            tokens = count(tokeniser, body)
            if tokens in wanted:
                if rng.random() < 0.3 and dialect != "openai_embeddings":
                    body["stream"] = True
                return Case(path, body, tokens)
            if tokens > wanted[-1]:
                high = middle - 1
            else:
                low = middle + 1
