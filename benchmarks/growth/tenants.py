"""10 to 10,000 tenants, each with a key and four quotas, calling in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.growth.gate import CONNECTIONS, KEY, PAGES, Case, Rig
from benchmarks.proxy.reference import prompt_tokens
from benchmarks.proxy.traffic import chat_body, engine_routes

COUNTS = (10, 100, 1_000, 10_000)
SLOWEST = 700  # calls a second at least: so long a warm-up has called for every tenant


def measure(rig: Rig, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each number of tenants."""
    body = chat_body("1 kB", 1_000)
    routes = engine_routes(prompt_tokens=prompt_tokens(body))
    rows = []
    with rig.engine(routes) as engine:
        for count in COUNTS:
            case = Case(engine.urls, longest=[100_000_000] * count)
            with rig.gate(case) as gate:
                row: dict[str, Any] = {"tenants": count, "start_s": gate.start_s}
                row["memory_mib"] = gate.memory_mib()
                gate.run(engine, body, CONNECTIONS, 0.5 + count / SLOWEST, key=KEY, keys=count)
                row |= gate.cost(engine, body, key=KEY, keys=count)
                row["memory_called_mib"] = gate.memory_mib()
                row |= {page: gate.asked(page) for page in PAGES}
                row["reload"] = gate.reload()
            rows.append(row)
            say(f"{row}")
    return rows
