"""One tokenizer as each engine uses it: loaded once, rendered and normalised engine by engine."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from gateway.rendering.registry import engine_rendering
from gateway.tokens.assets import AssetStore
from gateway.tokens.counter import PromptCounter
from gateway.tokens.encoder import Encoder
from gateway.tokens.libraries import load_encoder
from gateway.tokens.template import load_template


class EngineCounters:
    """The counters of one tokenizer reference.

    Loading takes a second or two of a processor, so it is apart from looking up: ``loaded`` never
    waits, ``load`` does and may run on any thread. Raises ``AssetError`` for a reference, files
    or a template that cannot be used.
    """

    def __init__(self, store: AssetStore, reference: str) -> None:
        self._files = store.resolve(reference)
        self._template = load_template(self._files)
        self._reference = reference
        self._encoders: dict[bool, Encoder] = {}
        self._counters: dict[str, PromptCounter] = {}
        self._loading = Lock()

    @property
    def description(self) -> Mapping[str, object]:
        """What counts, for operators; ``warnings`` say where it is not the first choice."""
        encoders = tuple(self._encoders.values())
        return {
            "tokenizer": self._reference,
            "libraries": sorted({encoder.library for encoder in encoders}),
            "template": self._template is not None,
            "warnings": sorted({text for encoder in encoders for text in encoder.warnings}),
        }

    def loaded(self, engine: str) -> PromptCounter | None:
        """The counter for an engine, if it is ready."""
        return self._counters.get(engine)

    def load(self, engine: str) -> PromptCounter:
        """The counter for an engine, made ready where it was not."""
        with self._loading:
            if engine not in self._counters:
                rendering = engine_rendering(engine)
                encoder = self._encoders.get(rendering.normalises)
                if encoder is None:
                    encoder = load_encoder(self._files, normalise=rendering.normalises)
                    self._encoders[rendering.normalises] = encoder
                self._counters[engine] = PromptCounter(encoder, self._template, rendering)
            return self._counters[engine]
