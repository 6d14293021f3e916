from __future__ import annotations

from typing import Any

import pytest

from gateway.settings import NoSecrets, explain, for_backend, parse

BACKEND: dict[str, Any] = {"name": "a", "url": "http://h:1"}
DIGEST = "0d3c2f4a5b6978e1f2034cd56ab79e80f1a2b3c4d5e6f708192a3b4c5d6e7f80"


COUNTED: dict[str, Any] = {"tokenizer": "qwen3"}


def calibrated(**calibration: Any) -> dict[str, Any]:
    return {**COUNTED, "calibration": calibration}


def explained(backend: dict[str, Any] | None = None, **sections: Any) -> str:
    written = {"backends": [BACKEND | (backend or {})], **sections}
    return explain(parse(written, NoSecrets()))


def tenant(**policy: Any) -> dict[str, Any]:
    entry = {"id": "t", "key_sha256": [DIGEST], "policy": "p"}
    return {"tenants": [entry], "policies": {"p": policy}}


def test_one_url_explained() -> None:
    text = explain(for_backend("http://10.0.0.1:30000"))
    assert "Backend default (http://10.0.0.1:30000):" in text
    assert "Tenant default:" in text
    assert "OPEN: any or no key is accepted" in text
    assert "policy default: no quotas" in text
    assert "while the limit is unknown, prompts are refused with 503" in text
    assert "without effect" not in text
    assert text.endswith("\n")


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        ({"engine": "vllm"}, "engine: vllm"),
        ({}, "engine: asked at start"),
        ({"workers": ["http://w:1", "http://w:2"]}, "workers behind it: http://w:1, http://w:2"),
        ({"models": ["glm-*", "q"]}, "models: glm-*, q"),
        ({"tokenizer": "qwen3"}, "tokens counted with: qwen3"),
        ({}, "longest prompt: what the engine can hold\n"),
        ({"limit": {"margin": 9}}, "what the engine can hold, less 9 tokens"),
        ({"limit": {"max_prompt_tokens": 77}}, "and never more than 77 tokens"),
        ({"limit": {"refresh": "3s"}}, "asked again every 3s; unknown after 2m"),
        ({"limit": {"when_unknown": "allow"}}, "prompts are FORWARDED without a check of length"),
        ({"limit": {"when_uncountable": "allow"}}, "are FORWARDED without a count"),
        ({"limit": {"allow_truncating_engine": True}}, "is served ALL THE SAME"),
        (COUNTED, "are compared with the engine's every 1h; where they differ, the engine counts"),
        (calibrated(every="2h", on_difference="margin"), "every 2h; where they differ, a margin"),
        (calibrated(on_difference="refuse"), "prompts are refused with 503"),
        (calibrated(on_difference="ignore"), "it is ONLY SHOWN"),
        (calibrated(learn_offset=True), "and a constant offset of chats is learnt"),
        (calibrated(every="0s"), "these counts are NEVER compared with the engine's"),
        ({"on_disconnect": "drain"}, "the engine's answer is read to its end"),
        ({"cache_salt": "off"}, "prefix cache: SHARED between tenants"),
        ({"salt_secret": "x" * 16}, "salts kept over restarts"),
        ({}, "salts new at each start"),
        ({"api_key": "k"}, "the engine's key: set"),
    ],
)
def test_each_choice_of_a_backend_is_said(backend: dict[str, Any], sentence: str) -> None:
    assert sentence in explained(backend)


@pytest.mark.parametrize("tokenizer", [{}, {"tokenizer": "engine"}])
def test_counts_of_the_engine_are_not_compared_with_it(tokenizer: dict[str, Any]) -> None:
    assert "compared with the engine's" not in explained(tokenizer)


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ({}, "policy p: no quotas"),
        ({"requests_per_minute": 6}, "policy p: 6 requests a minute\n"),
        ({"tokens_per_day": 7, "concurrent": 8}, "policy p: 7 tokens a day, 8 at the same time"),
        ({"tokens_per_minute": 5}, "without a stated maximum: 1024 tokens an answer"),
        ({"concurrent": 1, "shadow": True}, "1 at the same time (SHADOW: never refused)"),
        ({"tokens_per_month": 7}, "policy p: 7 tokens in 30 days\n"),
        (
            {"input_tokens_per_minute": 5, "output_tokens_per_minute": 6},
            "5 input tokens a minute, 6",
        ),
        ({"requests_per_minute": 6, "bursts": {"requests_per_minute": 2}}, "minute (2 at once)"),
        ({"per_model": {"m*": {"concurrent": 3}}}, "  - besides, models m*: 3 at the same time\n"),
        ({"per_model": {"m*": {"tokens_per_day": 3}}}, "without a stated maximum: 1024"),
        ({"tokens_per_day": 9, "cached_token_weight": 0.1}, "a cached prompt token counts 0.1"),
        ({"max_prompt_tokens": 200}, "longest prompt: 200 tokens"),
        ({}, "longest prompt: the engine's limit alone"),
        ({"models": ["glm-5"]}, "models: glm-5"),
    ],
)
def test_each_choice_of_a_policy_is_said(policy: dict[str, Any], sentence: str) -> None:
    text = explained(**tenant(**policy))
    assert sentence in text
    assert "  - 1 key\n" in text


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"integrity": {"prompt_tokens": {"sample": 0.05}}}, "in 5 % of the answers"),
        ({"integrity": {"prompt_tokens": {"action": "block"}}}, "the answer is withheld"),
        ({"integrity": {"latency": {"action": "off"}}}, "answered too fast: not checked"),
        ({"integrity": {"latency": {"action": "hold"}}}, "too fast: held until it is checked"),
        ({"integrity": {"latency": {"action": "quarantine"}}}, "and held against the backend"),
        ({"integrity": {"binding": {"action": "off"}}}, "of another request: NOT CHECKED"),
        ({"integrity": {"completeness": {"action": "flag"}}}, "cannot be: recorded"),
        ({"integrity": {"cached_tokens": {"action": "block"}}}, "never sent: withheld"),
        ({"integrity": {"quarantine": {"max_share": 0.25}}}, "at most 25 % of a model's backends"),
        (
            {"integrity": {"webhook": {"url": "http://h/x", "secret": "sixteen characters"}}},
            "incidents are sent to http://h/x",
        ),
        ({"integrity": {"sentinel": {}}}, "  - integrity.sentinel is not active"),
        ({"body": {"max_bytes": "10kB"}}, "request bodies up to 10000, else 413"),
        ({"drain": "2m"}, "after SIGTERM open answers have 2m"),
        ({"timeouts": {"idle": "7s"}}, "idle 7s"),
        ({"counting": {"threads": 3}}, "3 counting threads"),
    ],
)
def test_every_other_choice_is_said(sections: dict[str, Any], sentence: str) -> None:
    assert sentence in explained(**sections)


def test_no_secret_and_no_hash_of_a_key_is_said() -> None:
    backend = {"api_key": "LEAKMARK", "salt_secret": "LEAKMARK" * 2}
    text = explained(backend, **tenant())
    assert "LEAKMARK" not in text
    assert DIGEST not in text


def test_the_end_of_a_key_is_said() -> None:
    ending = {"sha256": DIGEST, "not_after": "2026-12-31T00:00:00Z"}
    entry = {"id": "t", "key_sha256": [ending, "c" * 64]}
    assert "  - 2 keys, one until 2026-12-31T00:00:00+00:00\n" in explained(tenants=[entry])


def test_several_workers_are_told_with_what_each_has_of_its_own() -> None:
    written = {"backends": [{"name": "a", "url": "http://h:1"}], "limits": {"store": "redis://h"}}
    assert "worker processes" not in explain(parse(written, NoSecrets()))
    assert "  - 4 worker processes; tokenizers, counts remembered" in explain(
        parse(written | {"workers": 4}, NoSecrets())
    )
