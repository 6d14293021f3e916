"""The run as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.proxy.peers import BASELINE, POOLGATE

COLD_GOAL, WARM_GOAL, ADDED_GOAL_US, STALL_GOAL_MS = 10.0, 50.0, 1000.0, 20.0


def markdown(run: Mapping[str, Any]) -> str:
    """All tables, with what was not reached said where it was measured."""
    return "\n".join(
        [
            f"# Counting, {run['when']}",
            "",
            *_setting(run),
            "",
            f"## Over the limit: 4 MB, limit {run['limit']:,}",
            "",
            *_decisions(run, "over"),
            "",
            f"## At the limit: the exact count of the most text within {run['limit']:,}",
            "",
            *_decisions(run, "at"),
            "",
            *_goals(run["decisions"]),
            "",
            "## Under the bound: a 400 kB chat",
            "",
            *_under(run),
            "",
            "## How tight the bounds are",
            "",
            *_tightness(run["tightness"]["rows"]),
            "",
            "## Requests that must be counted",
            "",
            *_shares(run["tightness"]["shares"]),
            "",
        ]
    )


def stalls_and_memory(run: Mapping[str, Any]) -> str:
    """What ``benchmarks.counting.stalls`` measured."""
    return "\n".join(
        [
            f"{run['when']}.",
            *_setting(run),
            "",
            "### Stalls: two cold prompts of 4 MB at once, least and most of the rounds, in ms",
            "",
            *_stalls(run["stalls"]),
            "",
            "### Memory: RSS in MiB, by unseen text counted",
            "",
            *_memory(run["memory"]),
        ]
    )


def _setting(run: Mapping[str, Any]) -> list[str]:
    machine = run["machine"]
    return [
        f"{machine['cpu']}, {machine['cores']} cores{' (virtual)' if machine['virtual'] else ''}, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, Python {machine['python']}, "
        f"load {machine['load_average_before']:.2f} before; priority {run['priority']}.",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in run["versions"].items()) + ".",
    ]


def _stalls(stalls: Mapping[str, Any]) -> list[str]:
    if not stalls:
        return ["Not measured in this run."]
    rounds = {
        (kind, name): [row["stall_ms"] for row in rows]
        for name, one in stalls.items()
        for kind, rows in one["kinds"].items()
    }
    kinds = list(dict.fromkeys(kind for kind, _ in rounds))
    cells = {row: f"{min(delays):.1f} to {max(delays):.1f}" for row, delays in rounds.items()}
    over = [
        f"{kind} with {name}, {min(delays):.1f} ms"
        for (kind, name), delays in rounds.items()
        if min(delays) >= STALL_GOAL_MS
    ]
    worst = [delay for delays in rounds.values() for delay in delays]
    return [
        *_table(
            ["text", *stalls],
            [
                *([kind, *(cells[kind, name] for name in stalls)] for kind in kinds),
                ["nothing", *(f"{one['idle_ms']:.1f}" for one in stalls.values())],
                ["load before", *(f"{one['load']:.2f}" for one in stalls.values())],
            ],
        ),
        "",
        f"* Under {STALL_GOAL_MS:.0f} ms: "
        + ("not reached by " + "; ".join(over) if over else "reached in every row")
        + f". Of all {len(worst)} rounds {sum(delay >= STALL_GOAL_MS for delay in worst)} took "
        f"longer; the worst was {max(worst):.1f} ms.",
    ]


def _memory(memory: Mapping[str, Mapping[str, int]]) -> list[str]:
    if not memory:
        return ["Not measured in this run."]
    marks = list(next(iter(memory.values())))
    return _table(
        ["tokenizer", *(f"{mark} MB" for mark in marks)],
        ([name, *(str(rss[mark]) for mark in marks)] for name, rss in memory.items()),
    )


def _decisions(run: Mapping[str, Any], part: str) -> list[str]:
    return _table(
        ["text", "tokenizer", "against", "poolgate cold", "warm", "library cold", "warm",
         "x cold", "x warm"],
        (
            [row["text"], row["tokenizer"], row["library"], _ms(row["cold_ms"]),
             _ms(row["warm_ms"]), _ms(row["library_cold_ms"]), _ms(row["library_warm_ms"]),
             f"{row['cold_ratio']:.1f}", f"{row['warm_ratio']:.0f}"]
            for row in run["decisions"]
            if row["part"] == part
        ),
    )  # fmt: skip


def _goals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each goal against each row of tokenizers' own comparison."""
    said = []
    for name, goal in (("cold", COLD_GOAL), ("warm", WARM_GOAL)):
        short = [
            f"{row['text']}, {row['part']} the limit, against {row['library']}: "
            f"{row[f'{name}_ratio']:.1f}"
            for row in rows
            if row[f"{name}_ratio"] < goal
        ]
        said.append(f"* {goal:.0f}x {name}: " + ("not reached by " + "; ".join(short) if short
                                                 else "reached in every row") + ".")  # fmt: skip
    return said


def _under(run: Mapping[str, Any]) -> list[str]:
    steps, http = run["under_bound"]["steps_us"], run["under_bound"]["http"]
    lines = _table(
        ["step, in process", "median"], ([name, f"{us:,.0f} µs"] for name, us in steps.items())
    )
    if not http:
        return [*lines, "", "Not measured over HTTP: the proxy benchmark's rig is not set up."]
    names = list(next(iter(http.values())))
    added = {engine: p50[POOLGATE] - p50[BASELINE] for engine, p50 in http.items()}
    return [
        *lines,
        "",
        *_table(
            ["over HTTP, p50", *names, "poolgate over aiohttp"],
            (
                [engine, *(f"{p50[name]:,.0f} µs" for name in names), f"{added[engine]:+,.0f} µs"]
                for engine, p50 in http.items()
            ),
        ),
        "",
        *(
            f"* Less than 1 ms added before {engine}: "
            f"{'reached' if us < ADDED_GOAL_US else 'not reached'}, {us / 1e3:.2f} ms."
            for engine, us in added.items()
        ),
    ]


def _tightness(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return _table(
        ["tokenizer", "text", "bytes a token", "bytes / tokens", "bound / tokens",
         "bound a byte", "cost"],
        (
            [row["tokenizer"], row["text"], f"{row['bytes_a_token']:.2f}",
             f"{row['bytes_bound']:.2f}", f"{row['bound']:.2f}", f"{row['bound_a_byte']:.3f}",
             f"{row['ms_a_megabyte']:.1f} ms/MB"]
            for row in rows
        ),
    )  # fmt: skip


def _shares(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return _table(
        ["traffic (synthetic)", "limit", "over the limit", "bytes over it", "bound over it"],
        (
            [row["traffic"], f"{row['limit']:,}", f"{row['over']:.4%}", f"{row['bytes']:.3%}",
             f"{row['new']:.3%}"]
            for row in rows
        ),
    )  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---" if index < 2 else "---:" for index in range(len(head))]
    return ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]


def _ms(value: float) -> str:
    return f"{value:,.1f} ms"
