"""Which engine renders how, and what else of its tokenising differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.rendering import generic, llama_cpp, sglang, vllm
from gateway.rendering.common import Render


@dataclass(frozen=True, slots=True)
class EngineRendering:
    """How an engine tokenises.

    ``special_tokens``: whether plain completion prompts get the tokenizer's BOS and EOS;
    ``special_tokens_field``: whether a request's ``add_special_tokens`` overrides that.
    ``normalises``: whether the tokenizer's normaliser is applied.
    """

    render: Render
    special_tokens: bool = True
    special_tokens_field: bool = True
    normalises: bool = True

    def adds_special_tokens(self, asked: bool | None) -> bool:
        """Whether a completion prompt gets them, given what the request says."""
        if asked is None or not self.special_tokens_field:
            return self.special_tokens
        return asked


GENERIC = EngineRendering(generic.render)
ENGINES: Mapping[str, EngineRendering] = {
    "vllm": EngineRendering(vllm.render),
    "sglang": EngineRendering(sglang.render, special_tokens_field=False),
    "llama_cpp": EngineRendering(llama_cpp.render, special_tokens_field=False, normalises=False),
}


def engine_rendering(engine: str) -> EngineRendering:
    """The rules of an engine by its adapter's name; the generic ones for any other."""
    return ENGINES.get(engine, GENERIC)
