"""``poolgate gate`` against the simulated engine, over HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.cli.main import main
from simulated import serving

COVERED = {"context": 4096, "prefill_pool": 8192, "decode_pool": 8192}


@pytest.mark.parametrize(
    ("sizes", "expected", "level"),
    [
        (COVERED, 0, ("legs", "pass")),
        (COVERED | {"prefill_pool": 2048}, 1, ("pool", "fail")),
        (COVERED | {"router": False}, 3, ("legs", "not exposed")),
    ],
    ids=["covered", "small_pool", "one_leg"],
)
async def test_gate(sizes, expected, level, capsys):
    async with serving(**sizes) as sim:
        line = ["gate", "--backend", sim.handle.url, "--json"]
        code = await asyncio.to_thread(main, line)
    report = json.loads(capsys.readouterr().out)
    assert (code, report["exit"]) == (expected, expected)
    assert level in {(finding["check"], finding["level"]) for finding in report["findings"]}


async def test_a_silent_engine_is_not_exposed(capsys):
    async with serving() as sim:
        gone = sim.handle.url
    assert await asyncio.to_thread(main, ["gate", "--backend", gone]) == 3
    assert capsys.readouterr().out.endswith("gate: not exposed\n")
