"""What a prompt under its bound costs before it is sent on: step by step, and over HTTP."""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.proxy import peers, reference
from benchmarks.proxy.rig import Child, Cores, FakeEngine, Load, call, free_port, wait_for
from benchmarks.proxy.traffic import CHAT_PATH, Body, chat_body
from gateway.dialects import isolation, routes, wire
from gateway.tokens.assets import AssetStore
from gateway.tokens.counters import EngineCounters
from gateway.types import ChatPrompt

SIZE_NAME, SIZE = "400 kB", 400_000
LIMIT = 681_273
TIMES = 200
PEERS = (peers.DIRECT, peers.BASELINE, peers.POOLGATE)
ENGINES = ((0, 1), (50, 1), (50, 4))  # milliseconds it takes, connections at once


def steps() -> dict[str, float]:
    """Median microseconds of each step on one 400 kB chat, in this process, one after another."""
    dialect = routes.match("POST", CHAT_PATH)
    if dialect is None:
        raise AssertionError(f"no dialect for {CHAT_PATH}")
    raw = chat_body(SIZE_NAME, SIZE).data
    parsed = dialect.parse(CHAT_PATH, raw)
    counter = EngineCounters(AssetStore.open(), "qwen3").load("sglang")
    edits = {
        **isolation.isolation_edits(parsed.body),
        **dialect.edits(parsed),
        "cache_salt": msgspec.Raw(msgspec.json.encode("0" * 64)),
    }

    def anew() -> ChatPrompt:  # the text that was rendered for a bound is kept with its prompt
        return ChatPrompt(dialect.name, parsed.body)

    calls: dict[str, Callable[[], object]] = {
        "parse": lambda: dialect.parse(CHAT_PATH, raw),
        "render and bound": lambda: counter.measure(anew(), LIMIT),
        "edits": lambda: wire.apply_edits(raw, edits, parsed.body.keys()),
        "exact count, warm (in the shadow of the engine)": lambda: counter.count(anew()),
    }
    return {name: _median_us(call) for name, call in calls.items()}


def _median_us(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(TIMES):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


def over_http(rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Median microseconds of a call, by how long the engine thinks and how many call at once.

    At one connection the processor's caches are cold for each call; at four less so.
    """
    body = chat_body(SIZE_NAME, SIZE)
    tokens = reference.prompt_tokens(body)
    return {
        f"an engine that takes {milliseconds} ms, {connections} at once": _round_trips(
            body, tokens, milliseconds / 1e3, connections, rounds, seconds
        )
        for milliseconds, connections in ENGINES
    }


def _round_trips(
    body: Body, tokens: int, pause: float, connections: int, rounds: int, seconds: float
) -> dict[str, float]:
    cores = Cores.of_this_machine()
    with (
        tempfile.TemporaryDirectory(prefix="poolgate-counting-") as folder,
        contextlib.ExitStack() as stack,
    ):
        work = Path(folder)
        engine = ThinkingEngine(cores.rig, work, tokens, pause)
        stack.callback(engine.child.stop)
        load = Load(cores.rig, work)
        taken: dict[str, list[float]] = {}
        running = []
        for peer in (peer for peer in peers.ALL if peer.name in PEERS):
            one = peers.start(peer, engine, cores.proxy, work, body)
            running.append(one)
            if one.child is not None:
                stack.callback(one.child.stop)
        for number in range(rounds * len(running)):
            one = running[number % len(running)]
            run = load.run(one.port, body, connections, seconds, number * 10**9, one.peer.key)
            if run["ok"] != run["calls"]:
                raise RuntimeError(f"{one.peer.name}: not every answer was right: {run}")
            taken.setdefault(one.peer.name, []).append(run["p50_us"])
    return {name: statistics.median(values) for name, values in taken.items()}


class ThinkingEngine(FakeEngine):
    """In place of the rig's engine, which answers at once."""

    def __init__(self, core: int, work: Path, tokens: int, pause: float) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [sys.executable, "-m", "benchmarks.counting.thinking_engine"]
        numbers = [str(self.port), str(tokens), str(pause)]
        self.child = Child([*argv, *numbers], core, work / "engine.log")
        wait_for(lambda: call(f"{self.url}/health")[0] == 200, 20, "the thinking engine")
