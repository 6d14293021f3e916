"""The soak itself: a small run of it, and callers that see faults where no gateway stops them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.soak import plan
from benchmarks.soak.callers import Caller, Ending
from benchmarks.soak.engine import Engine
from benchmarks.soak.plan import Kind

ROOT = Path(__file__).resolve().parents[2]


async def test_a_small_soak_holds(tmp_path):
    """200 calls with every kind of trouble, and a restart of an instance and of a worker."""
    report = tmp_path / "soak.json"
    options = ("--calls", "200", "--restarts", "2", "--callers", "16", "--seed", "20261201")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.soak", *options, "--report", str(report)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    found = json.loads(report.read_text())
    assert found["held"]
    assert len(found["claims"]) == 18
    assert sum(sum(outcomes.values()) for outcomes in found["outcomes"].values()) == 200
    assert found["outcomes"]["healthy"]["complete"] > 50
    assert found["outcomes"]["over_limit"]["400 context_length_exceeded"] > 5


@pytest.mark.parametrize(
    ("kind", "stream", "expected"),
    [
        (Kind.HEALTHY, True, Ending.COMPLETE),
        (Kind.HEALTHY, False, Ending.COMPLETE),
        (Kind.CUT, True, Ending.CUT),
        (Kind.CUT, False, Ending.CUT),
        (Kind.RESET, True, Ending.CUT),
        (Kind.UNFINISHED, True, Ending.HOLLOW),
        (Kind.EMPTY, True, Ending.HOLLOW),
        (Kind.EMPTY, False, Ending.HOLLOW),
        (Kind.UNREADABLE, False, Ending.HOLLOW),
        (Kind.SWAPPED, True, Ending.HOLLOW),
        (Kind.SWAPPED, False, Ending.HOLLOW),
        (Kind.ERROR_500, True, Ending.REFUSED),
    ],
)
async def test_without_a_gateway_its_callers_see_what_the_engine_does(kind, stream, expected):
    calls = [replace(plan.call(1, n), leave=None, pause=0.0, stream=stream) for n in range(2)]
    async with Engine().running() as engine:
        caller = Caller(lambda: engine.port)
        first = await caller.make(replace(calls[0], kind=Kind.HEALTHY))
        second = await caller.make(replace(calls[1], kind=kind))
        caller.hang_up()
    assert (first.ending, first.foreign) == (Ending.COMPLETE, False)
    assert second.ending is expected
    assert second.foreign is (kind is Kind.SWAPPED)


async def test_callers_leave_at_the_moment_they_are_told_to():
    moments = Counter()
    async with Engine().running() as engine:
        for moment in plan.Moment:
            for reset in (True, False):
                leave = plan.Leave(moment, 0.01, 2, reset)
                caller = Caller(lambda: engine.port)
                call = replace(plan.call(1, len(moments)), kind=Kind.HEALTHY, stream=True)
                seen = await caller.make(replace(call, pause=0.03, pieces=9, leave=leave))
                assert seen.ending is Ending.LEFT
                moments[moment, bool(seen.status)] += 1
    assert moments == {
        (plan.Moment.SENDING, False): 2,
        (plan.Moment.WAITING, False): 2,
        (plan.Moment.READING, True): 2,
    }
