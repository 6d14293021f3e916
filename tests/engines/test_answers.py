"""What the checks of answers make of real engines: our id comes back, whole answers are whole."""

from __future__ import annotations

from typing import Any

import pytest

from engines import live
from gateway.types import Verdict

TEXT = " ".join(f"word{n}" for n in range(150))
CHAT = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat, n = 2": ("/v1/chat/completions", {**CHAT, "n": 2}),
    "completions": ("/v1/completions", {"prompt": TEXT, "max_tokens": 4}),
    "completions, batch": ("/v1/completions", {"prompt": [TEXT, "other"], "max_tokens": 4}),
    "messages": ("/v1/messages", CHAT),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 4}),
    "generate": ("/generate", {"text": TEXT, "sampling_params": {"max_new_tokens": 4}}),
}
# Dialects in which each engine gives our id back, of one sequence.
ECHO = {
    "SGLang": {"chat", "completions", "completions, batch", "responses", "generate"},
    "vLLM": {
        "chat",
        "chat, n = 2",
        "completions",
        "completions, batch",
        "messages",
        "responses",
    },
    "llama.cpp": set(),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", SHAPES)
async def test_our_id_comes_back_and_answers_are_complete(pair, findings, name, stream):
    path, body = SHAPES[name]
    answer = await pair.through(path, {"model": live.MODEL, **body, "stream": stream})
    if answer.status in (404, 405, 501) or "'n'" in answer.words:
        pytest.skip(f"{pair.engine.name} does not offer it")
    assert answer.status == 200, answer.words
    checks = {check.check: check for check in (await pair.exchange(answer)).checks}
    found = {check: f"{one.verdict} {one.reason}".strip() for check, one in checks.items()}
    findings.setdefault(pair.engine.recipe.engine, {}).setdefault("answers", {})[
        f"{name}, {'stream' if stream else 'whole'}"
    ] = found
    assert (checks["completeness"].verdict, checks["completeness"].reason) == (Verdict.OK, "")
    echoes = name in ECHO[pair.engine.name]
    assert checks["binding"].verdict is (Verdict.OK if echoes else Verdict.UNVERIFIABLE)


async def test_what_the_engine_calls_cached_was_sent_before(engine, findings):
    """Its own pages again are no finding; of text that is new it claims nothing."""
    seen = []
    async with live.gateway_before(engine) as pair:
        for number in (*range(18), 3):
            content = " ".join(f"story{number} line{n}" for n in range(120))
            messages = [{"role": "user", "content": content}]
            body = {"model": live.MODEL, **CHAT, "messages": messages}
            answer = await pair.through("/v1/chat/completions", body)
            checks = (await pair.exchange(answer)).checks
            seen += [one for one in checks if one.check == "cached_tokens"]
    told = {f"{one.verdict} {one.reason}".strip() for one in seen}
    findings.setdefault(engine.recipe.engine, {})["cached_tokens"] = sorted(told)
    salted = engine.name != "llama.cpp"
    assert (len(seen), told) == ((19, {"ok"}) if salted else (0, set()))
