"""The deploy gate on live engines, and the incident's shape on one: a pool half the context."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from engines import live

POOL_LIMIT = 505  # SGLang's max_req_input_len for a pool of 512, less one
SMALL_POOL = pytest.mark.parametrize("engine", [live.SMALL_POOL], indirect=True, ids=["small_pool"])


async def gate(engine: live.Engine) -> tuple[int, dict[str, Any]]:
    """``poolgate gate`` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "gate", "--backend", engine.url, "--json"),
        cwd=live.REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(output)


async def test_gate(engine, findings):
    """None of these may fail outright; the default headroom of 1.25 asks for more than one slot."""
    code, report = await gate(engine)
    findings.setdefault(engine.recipe.engine, {})["gate"] = report
    by_check = {finding["check"]: finding["level"] for finding in report["findings"]}
    assert by_check["limit"] == by_check["truncation"] == "pass"
    # llama.cpp's pool is not shown: one slot's window is all that is sure to be there.
    assert by_check["pool"] == ("fail" if engine.recipe is live.LLAMA else "pass")
    assert code == (1 if engine.recipe is live.LLAMA else 0)


@SMALL_POOL
async def test_gate_fails_where_the_pool_is_under_the_context(engine, findings):
    code, report = await gate(engine)
    findings.setdefault("small_pool", {})["gate"] = report
    assert code == 1
    failed = {f["check"]: f["text"] for f in report["findings"] if f["level"] == "fail"}
    assert set(failed) == {"pool", "limit"}
    assert "512" in failed["pool"]
    assert str(POOL_LIMIT) in failed["limit"]


@SMALL_POOL
async def test_prompts_between_pool_and_context_never_reach_the_engine(engine, findings):
    async with live.gateway_before(engine) as pair:
        assert (pair.facts.context_tokens, pair.facts.pool_tokens) == (live.CONTEXT, 512)
        assert pair.limit == POOL_LIMIT
        seen = {}
        for length in (POOL_LIMIT - 1, POOL_LIMIT, POOL_LIMIT + 1, live.CONTEXT - 1):
            body = {"model": live.MODEL, "prompt": [23268] * length, "max_tokens": 1}
            before = pair.tap.to_engine
            through = await pair.through("/v1/completions", body)
            reached = pair.tap.to_engine > before
            native = {"input_ids": [23268] * length, "sampling_params": {"max_new_tokens": 1}}
            stream = await pair.direct("/generate", {**native, "stream": True})
            direct = await pair.direct("/v1/completions", body)
            seen[str(length)] = {
                "gateway": live.statement(through),
                "direct": live.statement(direct),
                "direct_native_stream": live.statement(stream),
            }
            fits = length <= POOL_LIMIT
            assert through.status == (200 if fits else 400)
            assert reached == fits
            assert direct.status == (200 if fits else 400)
        findings.setdefault("small_pool", {})["limits"] = seen
        findings["small_pool"]["discovery"] = pair.discovery
