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


class OpenAiCompatible(WithoutOracle):
    """The last resort of detection. Seen running: transformers serve 5.19."""

    __slots__ = ()

    name: str = "openai"
    traits: Traits = Traits()
    probes: tuple[Probe, ...] = (MODELS,)

    def recognises(self, answers: Answers) -> bool:
        """A list of models."""
        return bool(model_cards(answers).names)

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
