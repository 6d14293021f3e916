"""1 to 200 backends of one model, each an engine with an address of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.growth.gate import CONNECTIONS, PAGES, Case, Rig
from benchmarks.proxy.reference import prompt_tokens
from benchmarks.proxy.traffic import chat_body, engine_routes

COUNTS = (1, 10, 50, 200)
SLOWEST = 100  # calls a second at least


def measure(rig: Rig, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each number of backends. In a full run idle is one ``limit.refresh``."""
    body = chat_body("1 kB", 1_000)
    routes = engine_routes(prompt_tokens=prompt_tokens(body))
    rows = []
    with rig.engine(routes, max(COUNTS)) as engine:
        for count in COUNTS:
            with rig.gate(Case(engine.urls[:count])) as gate:
                row: dict[str, Any] = {"backends": count, "start_s": gate.start_s}
                row["calibrated_s"] = gate.calibrated()
                # Until every backend has been called: it then has a connection and its series.
                gate.run(engine, body, CONNECTIONS, 0.5 + count / SLOWEST)
                row |= gate.cost(engine, body)
                row["memory_mib"] = gate.memory_mib()
                row["idle_share"] = round(gate.idle_share(rig.plan.idle), 4)
                row["idle_stall_ms"], _ = gate.stall(lambda: time.sleep(rig.plan.idle / 2))
                row |= {page: gate.asked(page) for page in PAGES}
                row["reload"] = gate.reload()
            rows.append(row)
            say(f"{row}")
    return rows
