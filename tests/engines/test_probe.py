"""The probe on live engines: their boundary is where they say, and nothing crosses."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from engines import live

SMALL_POOL = pytest.mark.parametrize("engine", [live.SMALL_POOL], indirect=True, ids=["small_pool"])


async def probe(engine: live.Engine, *more: str) -> tuple[int, dict[str, Any]]:
    """``poolgate probe`` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "probe", "--backend", engine.url),
        *("--model", live.MODEL, "--idle", "1", "--json", *more),
        cwd=live.REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(output)


async def assert_clean(engine: live.Engine, *more: str) -> None:
    code, report = await probe(engine, *more)
    assert (code, report["verdict"]) == (0, "clean"), report["checks"]
    done = {check["check"] for check in report["checks"] if check["verdict"] == "ok"}
    assert done >= {"within", "over", "idle"}


async def test_probe(engine):
    await assert_clean(engine)


@SMALL_POOL
async def test_probe_of_a_pool_under_the_context(engine):
    await assert_clean(engine, "--tokenizer", live.TOKENIZER, "--long")
