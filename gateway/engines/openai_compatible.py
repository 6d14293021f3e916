"""Any other server that speaks the OpenAI API: it tells no limit, so the operator must."""

from __future__ import annotations

from gateway.engines.asking import WithoutOracle
from gateway.engines.base import (
    Answers,
    Probe,
    StatedLimit,
    Traits,
    Unreadable,
)
from gateway.engines.reading import BY_HAND, MODELS, model_cards
from gateway.types import WorkerFacts

# Model cards of these come from engines that have an adapter, one that cannot tell more just now
# (llama.cpp while it loads, say). Taken for an unknown server it would stay without a limit.
KNOWN_OWNERS = frozenset({"vllm", "sglang", "llamacpp", "tensorrt_llm", "lmdeploy", "library"})


class OpenAiCompatible(WithoutOracle):
    """The last resort of detection. Seen running: transformers serve 5.19."""

    __slots__ = ()

    name: str = "openai"
    traits: Traits = Traits()
    probes: tuple[Probe, ...] = (MODELS,)

    def recognises(self, answers: Answers) -> bool:
        """A list of models, when every question was answered and no known engine owns them."""
        cards = model_cards(answers)
        whole = all(answer.status != 0 for answer in answers.values())
        return bool(cards.names) and whole and not cards.owners & KNOWN_OWNERS

    def read(
        self,
        worker: str,  # noqa: ARG002
        answers: Answers,  # noqa: ARG002
    ) -> tuple[WorkerFacts, ...] | Unreadable:
        """Nothing in the API names the pool; a model card's length would be a mere promise."""
        return Unreadable(f"this server shows no pool and no limit; {BY_HAND}")

    def stated_limit(
        self,
        status: int,  # noqa: ARG002
        body: bytes,  # noqa: ARG002
    ) -> StatedLimit | None:
        """Its wording is not known."""
        return None
