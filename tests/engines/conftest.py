"""Real engines, one after the other: each session parameter is stopped before the next starts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engines import live

RECIPES = (live.LLAMA, live.SGLANG, live.VLLM)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session", params=RECIPES, ids=lambda recipe: recipe.engine)
def engine(request: pytest.FixtureRequest) -> Iterator[live.Engine]:
    recipe = request.param
    if not recipe.installed:
        pytest.skip(f"not installed: run scripts/engines/setup_{recipe.engine}.sh")
    with live.running(recipe) as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pair(engine: live.Engine) -> AsyncIterator[live.Pair]:
    async with live.gateway_before(engine) as running:
        yield running


@pytest.fixture(scope="session")
def findings() -> Iterator[dict[str, Any]]:
    """What a run found, engine by engine, for docs/verified-engines.md."""
    found: dict[str, Any] = {}
    yield found
    folder = live.INSTALLED / "findings"
    folder.mkdir(parents=True, exist_ok=True)
    for name, facts in found.items():
        path = folder / f"{name}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | facts, indent=1, ensure_ascii=False))
