from __future__ import annotations

import pytest

from gateway.engines.detect import NAMES
from gateway.rendering import generic
from gateway.rendering.registry import ENGINES, GENERIC, engine_rendering


def test_engines_are_named_as_their_adapters_are() -> None:
    assert set(ENGINES) <= set(NAMES)


def test_other_engines_render_what_means_the_same_everywhere() -> None:
    assert engine_rendering("tgi") is GENERIC
    assert GENERIC.render is generic.render


@pytest.mark.parametrize(
    ("engine", "asked", "adds"),
    [
        ("vllm", None, True),
        ("vllm", False, False),
        ("vllm", True, True),
        ("sglang", None, True),
        ("sglang", False, True),
        ("llama_cpp", False, True),
        ("ollama", None, True),
    ],
)
def test_special_tokens_on_completions(engine: str, asked: bool | None, adds: bool) -> None:
    """Case row 15."""
    assert engine_rendering(engine).adds_special_tokens(asked) is adds
