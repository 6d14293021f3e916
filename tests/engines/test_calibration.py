"""Our counts on the fixed prompts against real engines, under their own template and another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from engines import live
from gateway.core.calibration import Calibration, State
from gateway.core.samples import samples

CHAT = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 2}
# The model's template is another, so tools and the thinking switch count differently.
DRIFTED = live.Recipe("llama.cpp, chatml", "llama", ("--chat-template", "chatml"))


async def calibration_of(pair: live.Pair) -> Calibration:
    calibrator = pair.app.generation.runtime.backends[0].calibrator
    assert calibrator is not None
    async with asyncio.timeout(120):
        while calibrator.found.at is None:
            await asyncio.sleep(0.05)
    return calibrator.found


async def test_the_engine_counts_the_fixed_prompts_as_we_do(engine: live.Engine) -> None:
    async with live.gateway_before(engine, calibration={"every": "1h"}) as pair:
        found = await calibration_of(pair)
        assert found.differences == ()
        assert found.state is State.EXACT
        assert found.compared > 30
        assert pair.tap.counts_asked <= len(tuple(samples()))


@pytest.mark.parametrize(
    ("settings", "counted_by", "claim"),
    [({}, "engine", ""), ({"on_difference": "margin"}, "tokenizer", "~")],
)
async def test_another_template_is_found(
    settings: Mapping[str, Any], counted_by: str, claim: str
) -> None:
    if not DRIFTED.installed:
        pytest.skip("not installed: run scripts/engines/setup_llama.sh")
    with live.running(DRIFTED) as engine:
        async with live.gateway_before(engine, calibration={"every": "1h", **settings}) as pair:
            found = await calibration_of(pair)
            assert found.state is State.DIFFERS
            assert "openai_chat/tools" in {difference.case for difference in found.differences}
            assert not any(one.case.startswith("text/") for one in found.differences)
            calibrator = pair.app.generation.runtime.backends[0].calibrator
            assert calibrator is not None
            assert calibrator.description()["counted_by"] == counted_by
            body = {"model": live.MODEL, **CHAT}
            async with pair.http.post(pair.app.data_url + "/v1/chat/completions", json=body) as got:
                counted = got.headers["x-poolgate-prompt-tokens"]
                usage = (await got.json())["usage"]
            assert counted == f"{claim}{usage['prompt_tokens']}"
