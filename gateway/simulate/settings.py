"""What a simulated engine is made of."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from gateway.simulate.faults import Faults
from gateway.simulate.pages import FreeOrder
from gateway.simulate.text import Habits
from gateway.simulate.timing import Timing
from gateway.simulate.vision import Vision


def bundled_tokenizer() -> Path:
    """The directory of poolgate-tiny: in the source tree, else where a wheel puts it."""
    local = Path(__file__).resolve().parents[2] / "tokenizers" / "poolgate-tiny"
    return local if local.is_dir() else Path(sys.prefix, "share/poolgate/tokenizers/poolgate-tiny")


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """Sizes are tokens and pools round down to whole pages. The same settings and the same
    sequence of requests give the same answers.

    ``mean_answer`` is the mean length of an answer that no ``max_tokens`` cuts short.
    ``router``: the client port answers for both legs, as SGLang's mini_lb does; off, it answers
    as the prefill worker alone. Raises ValueError for sizes that cannot work.
    """

    seed: int = 0
    model: str = "poolgate-sim"
    version: str = "0.5.23"
    context: int = 16_384
    prefill_pool: int = 8_192
    decode_pool: int = 65_536
    page_size: int = 64
    chunk: int = 8_192
    free_order: FreeOrder = FreeOrder.FIFO
    scrub_on_free: bool = False
    prefix_cache: bool = True
    faults: Faults = field(default_factory=Faults)
    habits: Habits = field(default_factory=Habits)
    mean_answer: float = 96.0
    timing: Timing = field(default_factory=Timing)
    vision: Vision | None = None
    tokenizer: Path = field(default_factory=bundled_tokenizer)
    oracle: Path | None = None
    router: bool = True

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.chunk < 1 or self.mean_answer < 1:
            raise ValueError("page_size, chunk and mean_answer must be at least 1")
        smallest = max(self.page_size, 16)
        if min(self.context, self.prefill_pool, self.decode_pool) < smallest:
            raise ValueError(f"context and both pools need at least {smallest} tokens")

    def pool(self, leg: str) -> int:
        """A leg's pool in tokens, in whole pages."""
        tokens = self.prefill_pool if leg == "prefill" else self.decode_pool
        return tokens // self.page_size * self.page_size

    def max_req_input_len(self, leg: str) -> int:
        """SGLang's bound: a prompt is refused when its length reaches it.

        min(context - 1, pool - 1) - 5, from ``tp_worker.get_worker_info`` of 0.5.23.
        """
        return min(self.context, self.pool(leg)) - 6

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that both legs really accept."""
        return min(self.max_req_input_len("prefill"), self.max_req_input_len("decode")) - 1
