"""``poolgate gate`` against the simulated engine, over HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest

from fakes.raw_engine import RawEngine
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


@pytest.mark.parametrize(
    ("faults", "sizes", "level", "says"),
    [
        ((), {}, "pass", "decode answered for 900 of 3"),
        (("to_finish",), {}, "fail", "prompt tokens were never sent"),
        ((), {"router": False}, "advice", "not exposed"),
    ],
    ids=["sound", "incident", "one_leg"],
)
async def test_both_legs_books(faults, sizes, level, says, capsys):
    async with serving(*faults, context=4096, prefill_pool=1024, decode_pool=8192, **sizes) as sim:
        for number, length in enumerate((300, 300, 300, *([2000] if faults else []))):
            assert (await sim.generate(length, f"r{number}", max_new_tokens=4))[0] == 200
        line = ["gate", "--backend", sim.handle.url, "--json"]
        code = await asyncio.to_thread(main, line)
    report = json.loads(capsys.readouterr().out)
    [finding] = [one for one in report["findings"] if one["check"] == "transfer"]
    assert finding["level"] == level
    assert says in finding["text"]
    assert code == 1  # the pool is below the context in any case


async def test_an_engine_of_one_kind_has_no_transfer(capsys):
    async with RawEngine().running() as engine:
        await asyncio.to_thread(main, ["gate", "--backend", engine.url, "--json"])
    checks = {one["check"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert "transfer" not in checks
