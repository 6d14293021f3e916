"""The local tokenizers of a configuration, loaded and self-tested before it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.settings import Problem, Settings, SettingsError
from gateway.tokens.assets import PLAIN_FILES, AssetError, AssetStore, TokenizerFiles, file_sha256
from gateway.tokens.counters import EngineCounters


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tokenizer, what it was loaded from, and the SHA-256 of each file of that."""

    counters: EngineCounters
    files: TokenizerFiles
    sums: Mapping[str, str]


async def load_counters(
    settings: Settings, root: Path | None, before: Mapping[str, Loaded]
) -> dict[str, Loaded]:
    """The local tokenizers that backends name, by reference, self-tested on a thread.

    One of ``before`` whose files are what they were is taken as it is: loading another takes
    seconds, and holds the interpreter for hundreds of milliseconds. Raises ``SettingsError`` naming
    the backends whose tokenizer cannot be used.
    """
    loaded: dict[str, Loaded] = {}
    problems = []
    for place, backend in enumerate(settings.backends):
        reference = backend.tokenizer
        if reference is None or not backend.counts_locally:
            continue
        known = loaded.get(reference)
        engine = "openai" if backend.engine == "auto" else backend.engine
        if known is not None and known.counters.loaded(engine) is not None:
            continue
        try:
            loaded[reference] = await asyncio.to_thread(
                _load, known, before.get(reference), root, reference, engine
            )
        except AssetError as error:
            problems.append(Problem(f"backends[{place}].tokenizer", str(error)))
    if problems:
        raise SettingsError(problems)
    return loaded


def _load(
    known: Loaded | None, before: Loaded | None, root: Path | None, reference: str, engine: str
) -> Loaded:
    if known is None:
        store = AssetStore.open(root)
        files = store.resolve(reference)
        sums = _sums(files)
        if before is not None and (before.files, before.sums) == (files, sums):
            known = before
        else:
            known = Loaded(EngineCounters(store, reference), files, sums)
    known.counters.load(engine)
    return known


def _sums(files: TokenizerFiles) -> dict[str, str]:
    """Of every file that a tokenizer of this kind is read from."""
    names = (*PLAIN_FILES, f"{files.name}.tiktoken")
    return {name: file_sha256(path) for name in names if (path := files.path(name))}


def by_backend(settings: Settings, loaded: Mapping[str, Loaded]) -> dict[str, EngineCounters]:
    """The tokenizer of each backend that counts with one, by the backend's name."""
    return {
        backend.name: loaded[backend.tokenizer].counters
        for backend in settings.backends
        if backend.tokenizer is not None and backend.counts_locally
    }
