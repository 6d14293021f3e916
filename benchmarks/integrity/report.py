"""The tables of a run of ``python -m benchmarks.integrity``, for docs/integrity-proof.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.integrity.stats import told

Found = Mapping[str, Any]
BEGIN = "<!-- tables of the last run: begin -->"


def markdown(parts: Found) -> str:
    """Every part that was run, in the order of ``TABLES``."""
    tables = [
        f"{table(parts[name]['found'])}\n\nRun of {_run(parts[name])}."
        for name, table in TABLES.items()
        if name in parts
    ]
    return "\n\n".join([_machine(parts), *tables]) + "\n"


def _machine(parts: Found) -> str:
    about = next(iter(parts.values()))["machine"]
    return (
        f"{about['cpu']}, {about['usable_cores']} cores shared with other work, Python "
        f"{about['python']}. Brackets are 95% Wilson intervals."
    )


def _run(part: Found) -> str:
    load = part["machine"]["load_average_before"]
    return f"{part['when']}, {part['seconds']:.0f} s, load {load:.1f} before"


def _table(title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [f"### {title}", "", _line(head), "| --- " * len(head) + "|", *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: tuple[Any, ...]) -> str:
    return (
        "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells) + " |"
    )


def _count(found: Found) -> str:
    return (
        f"{found.get('hits', 0):,} of {found['of']:,}: {told(dict(found))}" if found["of"] else "-"
    )


def _gate_on(found: Found) -> str:
    both = (found["gate"], found["control"])
    return _table(
        "The incident's fault, gate on",
        ("", "gate on", "control: the engine overstates its limit"),
        [
            ("requests", *(one["requests"] for one in both)),
            ("over the limit, by the engine's count", *(one["over_limit"] for one in both)),
            ("of these answered 400", *(_count(one["over_400"]) for one in both)),
            ("of the others answered in full", *(_count(one["fit_200"]) for one in both)),
            (
                "longest prompt at the engine (limit 1,017)",
                *(one["longest_prompt_at_engine"] for one in both),
            ),
            ("answers with foreign tokens", *(one["leaked_answers"] for one in both)),
            ("foreign tokens in them", *(one["leaked_tokens"] for one in both)),
        ],
    )


def _clean(found: Found) -> str:
    return _table(
        "No fault, all checks on and blocking",
        ("clean requests", ""),
        [
            ("withheld", _count(found["withheld"])),
            ("answered in full", _count(found["complete"])),
            ("incidents", sum(found["incidents"].values())),
        ],
    )


def _latency(found: Found) -> str:
    return _table(
        f"The incident's fault, gate off: latency, prefill of {found['pace']:,.0f} tokens a second",
        ("answers", "withheld before the first byte"),
        [
            ("that leaked", _count(found["leaks_held"])),
            (
                "by a model that learnt from clean answers alone, on the same times",
                _count(found["leaks_possible"]),
            ),
            (
                f"of all {found['over_pool']} prompts over the pool ({found['shortest']:,} to "
                f"{found['longest']:,} tokens)",
                _count(found["over_pool_held"]),
            ),
            ("of prompts that fit, sent at the same time", _count(found["fitting_held"])),
        ],
    )


def _by_run(title: str) -> Callable[[Found], str]:
    def table(found: Found) -> str:
        rows = [(_span(row), row) for row in found["by_run"] if row["either"]["of"]]
        rows += [
            ("**157 and more (40 tokens)**", found["forty_tokens_or_more"]),
            ("all that leaked", found["all"]),
        ]
        text = _table(
            title,
            ("longest run of a foreign prompt, bytes", "answers", "fingerprints", "sentinels"),
            [
                (name, row["either"]["of"], told(row["fingerprints"]), told(row["sentinel"]))
                for name, row in rows
            ],
        )
        return (
            f"{text}\n\n{found['answers']:,} answers, {found['leaked']:,} with foreign tokens; "
            f"findings in the others: {_count(found['false'])}."
        )

    return table


def _span(row: Found) -> str:
    if row["to"] < 1:
        return "none of 24 (answers of others, templates, scraps)"
    return f"{row['from']} and more" if row["to"] > 100_000 else f"{row['from']} to {row['to']}"


def _swap(found: Found) -> str:
    return _table(
        "Swapped answers",
        ("endpoint", "answers", "swapped", "withheld before the first byte"),
        [
            (path, one["answers"], one["swapped"], _count(one["caught"]))
            for path, one in found.items()
        ],
    )


def _placements(found: Found) -> str:
    return _table(
        "The same, by where markers stand in the prompts",
        ("markers", "answers that leaked", "sentinels", "fingerprints"),
        [
            (where, one["leaked"], _count(one["sentinel"]), _count(one["fingerprints"]))
            for where, one in found.items()
        ],
    )


def _swap_usage(found: Found) -> str:
    return _table(
        "Swapped answers of /v1/messages, by their count of the prompt, action block",
        ("characters", "answers", "swapped", "count differs", "withheld", "before the first byte"),
        [
            (
                chars,
                one["answers"],
                one["swapped"],
                _count(one["differing"]),
                _count(one["withheld"]),
                one["before_first_byte"],
            )
            for chars, one in found.items()
        ],
    )


def _salt(found: Found) -> str:
    bands = [f"{one['from']:,} to {one['to']:,}" for one in found["salt"]["by_chars"]]
    return _table(
        "Prefix cache across tenants: withheld, by characters of the shared text",
        ("engine", "pairs", *bands),
        [
            (name, one["pairs"], *(told(band["caught"]) for band in one["by_chars"]))
            for name, one in (
                ("ignores salts and says so", found["salt"]),
                ("ignores salts and reports 0 (known miss)", found["cache_silent"]),
                ("no fault", found["none"]),
            )
        ],
    )


def _empty(found: Found) -> str:
    return _table(
        "Empty successes",
        ("endpoint", "did not reach the client as a success"),
        [(path, _count(one)) for path, one in found.items()],
    )


def _server_info(found: Found) -> str:
    return _table(
        "An overstated limit: over-long prompts, one after another",
        (
            "engine",
            "prompts",
            "reached it",
            "answered 400",
            "successes",
            "leaked",
            "`poolgate gate`",
        ),
        [
            (
                name,
                one["over_limit"],
                one["reached_engine"],
                one["answered_400"],
                one["successes"],
                one["leaked"],
                f"exit {one['gate_exit']}",
            )
            for name, one in found.items()
        ],
    )


TABLES: Mapping[str, Callable[[Found], str]] = {
    "gate_on": _gate_on,
    "latency": _latency,
    "latency_fast": _latency,
    "short_over_pool": _by_run("The incident's fault, gate off, prompts too short for latency"),
    "early_free": _by_run("Pages freed too early, prompts under the pool"),
    "placements": _placements,
    "swap": _swap,
    "swap_usage": _swap_usage,
    "salt": _salt,
    "empty200": _empty,
    "server_info": _server_info,
    "clean": _clean,
}
