"""The local tokenizers of a configuration, loaded and self-tested before it serves."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.settings import Problem, Settings, SettingsError
from gateway.tokens.assets import AssetError, AssetStore
from gateway.tokens.counters import EngineCounters


async def load_counters(settings: Settings, root: Path | None) -> dict[str, EngineCounters]:
    """The local tokenizer of each backend that has one, loaded and self-tested on a thread.

    Backends that name the same one share it. Raises ``SettingsError`` naming the backends whose
    tokenizer cannot be used.
    """
    counters: dict[str, EngineCounters] = {}
    shared: dict[str, EngineCounters] = {}
    problems = []
    for place, backend in enumerate(settings.backends):
        if backend.tokenizer is None or not backend.counts_locally:
            continue
        try:
            counters[backend.name] = shared[backend.tokenizer] = await asyncio.to_thread(
                _load_counter,
                shared.get(backend.tokenizer),
                root,
                backend.tokenizer,
                backend.engine,
            )
        except AssetError as error:
            problems.append(Problem(f"backends[{place}].tokenizer", str(error)))
    if problems:
        raise SettingsError(problems)
    return counters


def _load_counter(
    shared: EngineCounters | None, root: Path | None, reference: str, engine: str
) -> EngineCounters:
    counters = shared or EngineCounters(AssetStore.open(root), reference)
    counters.load("openai" if engine == "auto" else engine)
    return counters
