"""Tokenizers for tests: loaded once, and skipped with a reason where set-up did not fetch them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import tokenizers

from gateway.rendering.registry import engine_rendering
from gateway.tokens.assets import AssetMissing, AssetStore
from gateway.tokens.counter import PromptCounter
from gateway.tokens.encoder import Encoder
from gateway.tokens.libraries import load_encoder
from gateway.tokens.template import ChatTemplate, load_template

TINY = "poolgate-tiny"
FETCHED = ("qwen3", "deepseek_v4", "deepseek_v3", "gptoss", "o200k_base", "cl100k_base")
EVERY_TOKENIZER = [TINY, *(pytest.param(name, marks=pytest.mark.assets) for name in FETCHED)]
EVERY_HF_TOKENIZER = [
    TINY,
    *(pytest.param(name, marks=pytest.mark.assets) for name in FETCHED if "_base" not in name),
]


@cache
def store() -> AssetStore:
    return AssetStore.open()


@cache
def encoder(name: str, *, normalise: bool = True) -> Encoder:
    try:
        return load_encoder(store().resolve(name), normalise=normalise)
    except AssetMissing as error:
        pytest.skip(str(error))


@cache
def template(name: str = TINY, override: Path | None = None) -> ChatTemplate:
    try:
        found = load_template(store().resolve(name), override)
    except AssetMissing as error:
        pytest.skip(str(error))
    assert found is not None
    return found


@cache
def reference(name: str) -> tokenizers.Tokenizer:
    """HF's own tokenizer, counting whole texts: the oracle."""
    try:
        return tokenizers.Tokenizer.from_file(str(store().resolve(name).folder / "tokenizer.json"))
    except AssetMissing as error:
        pytest.skip(str(error))


def whole_count(name: str, text: str, *, add_special_tokens: bool = False) -> int:
    return len(reference(name).encode(text, add_special_tokens=add_special_tokens).ids)


def counter(name: str = TINY, engine: str = "vllm", with_template: bool = True) -> PromptCounter:
    rendering = engine_rendering(engine)
    return PromptCounter(
        encoder(name, normalise=rendering.normalises),
        template(name) if with_template else None,
        rendering,
    )
