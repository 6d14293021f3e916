"""``python -m benchmarks.growth.publish``: the last run's tables into docs/sizing.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth.gate import PAGES
from benchmarks.growth.sizing import Measured, Need, size
from benchmarks.proxy.publish import placed
from benchmarks.proxy.rig import ROOT

RESULTS = ROOT / "benchmarks/results/growth.json"
PAGE = ROOT / "docs/sizing.md"
BEGIN = "<!-- {}: begin -->"
NEEDS = (
    Need("one team", {1_000: 5}, streams=20, tenants=10, backends=1, store=False),
    Need("chat", {1_000: 100}, streams=300, tenants=1_000, backends=4),
    Need("chat, many customers", {1_000: 200}, streams=1_000, tenants=10_000, backends=20),
    Need("assistants with long chats", {16_000: 50}, 300, tenants=100, backends=8, turns=True),
    Need("coding agents", {64_000: 30}, streams=150, tenants=100, backends=8, turns=True),
    Need("documents", {256_000: 5}, streams=30, tenants=100, backends=8),
    Need("whole books", {1_000_000: 1}, streams=10, tenants=10, backends=8),
    Need(
        "a large site", {1_000: 300, 16_000: 100, 64_000: 20}, 3_000, tenants=10_000, backends=200
    ),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    run = json.loads(options.run.read_text())
    page = options.page.read_text()
    for name, made in tables(run).items():
        page = placed(page, made, BEGIN.format(name))
    options.page.write_text(page)
    return 0


def tables(run: Mapping[str, Any]) -> dict[str, str]:
    """The page's tables by the name between their markers."""
    measured = Measured.of(run)
    rows = {part: found["rows"] for part, found in run.items()}
    return {
        "sizes": _sizes(measured),
        "constants": _constants(measured),
        "run": _preface(run),
        "tenants": _tenants(rows["tenants"]),
        "backends": _backends(rows["backends"]),
        "prompts": _prompts(rows["prompts"]),
        "streams": _streams(rows["streams"]),
        "workers": _workers(rows["workers"]),
    }


def _sizes(measured: Measured) -> str:
    rows = []
    for need in NEEDS:
        got = size(need, measured)
        calls = " + ".join(f"{rate:g} of {_tokens(each)}" for each, rate in need.calls.items())
        rows.append(
            (
                need.name,
                calls + (", next turns" if need.turns else ""),
                f"{need.streams:,}",
                f"{need.tenants:,}",
                f"{need.backends:,}",
                f"{got.cores:.1f}",
                f"**{got.workers}**",
                _memory(got.memory_mib),
                f"{got.store_calls:,.0f}" if need.store else "none",
            )
        )
    head = (
        "", "calls/s, prompt tokens", "streams open", "tenants", "backends", "cores at work",
        "workers", "memory", "store calls/s",
    )  # fmt: skip
    return table(head, rows)


def _constants(measured: Measured) -> str:
    crowd = ", ".join(f"{workers:g}: x {factor:.2f}" for workers, factor in measured.crowd)
    tenants = ", ".join(f"{n:,}: x {factor:.2f}" for n, factor in measured.tenants)
    rows = [
        ("`new`, `turn`", "a call, by its prompt", "the table of prompts below"),
        ("`T`", "factor for tenants", tenants),
        ("`B`", "a call, for the choice among backends", _last(measured.backends, "backends")),
        ("`S`", "a call, where quotas are in a store", _time(measured.store)),
        ("`E`", "an event of a stream", _time(measured.event)),
        ("`D`", "asking one backend, all the time", f"{measured.backend_share:.2%} of a core"),
        ("`W`", "factor for workers, up to 8", crowd),
        ("`m`", "a worker with `qwen3`", f"{measured.worker_mib:,.0f} MiB"),
        ("`p`", "what long prompts leave it larger by", "the table of prompts below"),
        ("`t`", "a tenant, in each worker", f"{measured.tenant_mib * 1024:.1f} KiB"),
        ("`b`", "a backend, in each worker", f"{measured.backend_mib:.2f} MiB"),
        ("`s`", "an open stream", f"{measured.stream_mib * 1024:.0f} KiB"),
        ("`v`", "the supervisor, with 2 workers or more", f"{measured.supervisor_mib:,.0f} MiB"),
        ("`q`", "calls to the store, a request", f"{measured.store_calls:.1f}"),
    ]
    return table(("", "of", "measured"), rows)


def _preface(run: Mapping[str, Any]) -> str:
    times = [part["when"] for part in run.values()]
    calls = sum(part["calls"] for part in run.values())
    machine = run["tenants"]["machine"]
    return (
        f"{machine['cpu']}, {machine['usable_cores']} cores"
        f"{' (virtual)' if machine['virtual'] else ''}, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}; {min(times)} to {max(times)}.\n"
        f"{calls:,} calls, each answer checked, each seen once by the engine.\n"
    )


def _tenants(rows: Iterable[Mapping[str, Any]]) -> str:
    return table(
        (
            "tenants", "CPU a call", "calls/s", "start", "reload", "held up by it", "memory",
            *(cell for page in PAGES for cell in (f"`{page}`", "held up")),
        ),
        [
            (
                f"{row['tenants']:,}",
                _time(row["cpu_us"]),
                f"{row['per_second']:,.0f}",
                f"{row['start_s']:.1f} s",
                f"{row['reload']['s']:.2f} s",
                f"{row['reload']['stall_ms']:.0f} ms",
                _memory(row["memory_called_mib"]),
                *(cell for page in PAGES for cell in _asked(row[page])),
            )
            for row in rows
        ],
    )  # fmt: skip


def _backends(rows: Iterable[Mapping[str, Any]]) -> str:
    return table(
        (
            "backends", "CPU a call", "ready", "all compared", "idle CPU", "held up", "reload",
            "held up by it", "memory", "`/metrics`", "held up", "`/overview`", "held up",
        ),
        [
            (
                f"{row['backends']:,}",
                _time(row["cpu_us"]),
                f"{row['start_s']:.1f} s",
                f"{row['calibrated_s']:.1f} s",
                f"{row['idle_share']:.1%}",
                f"{row['idle_stall_ms']:.0f} ms",
                f"{row['reload']['s']:.2f} s",
                f"{row['reload']['stall_ms']:.0f} ms",
                _memory(row["memory_mib"]),
                *(cell for page in PAGES[:2] for cell in _asked(row[page])),
            )
            for row in rows
        ],
    )  # fmt: skip


def _prompts(rows: Iterable[Mapping[str, Any]]) -> str:
    return table(
        (
            "prompt tokens", "bytes", "new: CPU", "added p50", "next turn: CPU", "added p50",
            "refused: CPU", "p50", "memory grown by",
        ),
        [
            (
                f"{row['tokens']:,}",
                f"{row['bytes']:,}",
                _time(row["new"]["cpu_us"]),
                _time(row["new"]["added_p50_us"]),
                _time(row["turn"]["cpu_us"]),
                _time(row["turn"]["added_p50_us"]),
                _time(row["refused"]["cpu_us"]),
                _time(row["refused"]["single_p50_us"]),
                _memory(max(row["new"]["grown_mib"], row["turn"]["grown_mib"])),
            )
            for row in rows
        ],
    )  # fmt: skip


def _streams(rows: Iterable[Mapping[str, Any]]) -> str:
    return table(
        ("streams open", "events/s of all", "CPU an event", "memory a stream"),
        [
            (
                f"{row['streams']:,}",
                f"{row['events_per_s']:,.0f}",
                _time(row["cpu_us_event"]),
                "" if row["kib_stream"] is None else f"{row['kib_stream']:.0f} KiB",
            )
            for row in rows
        ],
    )


def _workers(rows: Iterable[Mapping[str, Any]]) -> str:
    return table(
        (
            "workers", "quotas in", "CPU a call", "calls/s, one core", "calls/s, two cores",
            "of it the supervisor", "idle CPU", "a worker", "supervisor", "store calls a request",
            "store's CPU a call", "busiest worker",
        ),
        [
            (
                f"{row['workers']}",
                "a store" if row["store"] else "memory",
                _time(row["cpu_us"]),
                f"{row['per_second']:,.0f}",
                f"{row['two_cores']:,.0f}" if "two_cores" in row else "",
                _time(row["supervisor_cpu_us"]),
                f"{row['idle_share']:.1%}",
                f"{row['worker_mib']:,.0f} MiB",
                f"{row['supervisor_mib']:,.0f} MiB" if row["supervisor_mib"] else "",
                f"{row['store_calls']:.1f}",
                _time(row["store_cpu_us"]),
                f"x {row['busiest_of_mean']:.2f}",
            )
            for row in rows
        ],
    )  # fmt: skip


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown, all columns but the first to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _asked(page: Mapping[str, float]) -> tuple[str, str]:
    return f"{page['bytes'] / 1000:,.0f} kB, {page['ms']:,.0f} ms", f"{page['stall_ms']:.0f} ms"


def _last(points: Sequence[tuple[float, float]], of: str) -> str:
    return ", ".join(f"{n:,} {of}: {_time(us)}" for n, us in points[1:])


def _tokens(number: int) -> str:
    return f"{number // 1000:,}k" if number < 1_000_000 else f"{number // 1_000_000}M"


def _memory(mib: float) -> str:
    return f"{mib:,.0f} MiB" if mib < 2048 else f"{mib / 1024:.1f} GiB"


def _time(us: float) -> str:
    return f"{us:,.0f} µs" if abs(us) < 1000 else f"{us / 1000:,.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
