#!/usr/bin/env python3
"""Write docs/verified-engines.md from what ``make test-engines`` found.

The tests leave their findings in the engines' folder (.engines/findings), one file an engine.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINES = Path(os.getenv("POOLGATE_ENGINES") or REPOSITORY / ".engines").resolve()
TARGET = REPOSITORY / "docs" / "verified-engines.md"
ORDER = ("llama", "sglang", "vllm")
NOTES = Path(__file__).with_name("verified-notes.md")

Findings = dict[str, Any]


def load(name: str) -> Findings:
    found: Findings = json.loads((ENGINES / "findings" / f"{name}.json").read_text("utf-8"))
    return found


def machine() -> str:
    """The processor, the memory and the system."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return f"{os.cpu_count()} cores of {cpu}, {pages:.0f} GiB, {system}, no GPU"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell(each) for each in row) + " |"
    yield ""


def limits(found: Findings) -> Iterator[str]:
    """What each dialect answered around the limit; equal rows are told once."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for dialect, seen in found["limits"].items():
        gateway = " / ".join(seen[off]["gateway"].split()[0] for off in ("-1", "0", "+1"))
        direct = " / ".join(seen[off]["direct"].split()[0].rstrip(",") for off in ("-1", "0", "+1"))
        said = seen["+1"]["direct"]
        groups.setdefault((gateway, direct, said), []).append(dialect)
    rows = [
        ("; ".join(sorted(names)), gateway, direct, said)
        for (gateway, direct, said), names in groups.items()
    ]
    yield from table(
        ("Requests", "Gateway at L-1 / L / L+1", "Engine alone", "The engine at L+1"), rows
    )
    reached = {seen["+1"]["bytes_to_engine"] for seen in found["limits"].values()}
    yield f"Bytes that reached the engine for a prompt of L+1 tokens: {', '.join(sorted(reached))}."
    yield ""


def corpus(name: str, found: Findings) -> tuple[str, ...]:
    seen = found["corpus"]
    reasons = ", ".join(f"{word}: {n}" for word, n in seen["unverifiable"].items()) or "none"
    dialects = ", ".join(f"{key} {n}" for key, n in seen["accepted_by_dialect"].items())
    asked = seen["counted_by_asking_the_engine"]
    return (
        name,
        f"{seen['accepted']} ({dialects})",
        str(seen["ok"]),
        str(asked),
        reasons,
        str(seen["mismatch"]),
        f"{sum(seen['refused_by_engine'].values())} + {seen['too_long_on_both']}",
    )


def gate(name: str, report: Findings) -> tuple[str, ...]:
    told = [f"{f['level']} {f['check']}: {f['text']}" for f in report["findings"]]
    counts = Counter(finding["level"] for finding in report["findings"])
    failed = [line for line in told if line.startswith(("fail", "not exposed", "advice"))]
    summary = ", ".join(f"{n} {level}" for level, n in counts.items())
    return (name, str(report["exit"]), report["verdict"], summary, "; ".join(failed) or "-")


def incident(found: Findings) -> Iterator[str]:
    """SGLang 0.5.19 with prefill and decode apart: what leaks, and who sees it."""
    yield "## The incident itself"
    yield ""
    yield (
        "SGLang 0.5.19 as a prefill and a decode worker behind sglang-router, prefill's pool a"
        " quarter of the context. With the gateway in front, all such prompts were answered 400"
        " and none reached the router. How it is done: [reproduction.md](reproduction.md)."
    )
    yield ""
    leaks = found["leaks"]
    leaked = sum(bool(owners) for owners in leaks.values())
    rows = [("over-long prompts, without the gateway", f"{leaked} of {len(leaks)} leaked")]
    for name in ("whole", "stream"):
        answers = found[f"gate off, {name}"]
        withheld = sum(each.get("fingerprints") == "leak" for each in answers)
        held = "withheld" if name == "whole" else "cut"
        rows.append(
            (f"the same, its limit set too high, {name}", f"{withheld} of {len(answers)} {held}")
        )
    checks = Counter(f"{check['check']} {check['verdict']}" for check in found["probe"]["checks"])
    rows.append(("`poolgate gate`", f"exit {found['gate']['exit']}, {found['gate']['verdict']}"))
    rows.append(("`poolgate probe`", ", ".join(f"{n} {name}" for name, n in checks.items())))
    yield from table(("Asked", "Found"), rows)


def document() -> Iterator[str]:
    engines = {name: load(name) for name in ORDER}
    small = load("small_pool")
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    yield "# Verified on real engines"
    yield ""
    yield (
        "Written by `scripts/engines/report.py` from a run of `make test-engines` on"
        f" {today}. Machine: {machine()}."
    )
    yield ""
    yield (
        "Each engine ran a tiny Qwen3 model (random weights, Qwen3's own tokenizer and chat"
        " template) with a context of 1,024 tokens, one engine at a time, with poolgate in front"
        " and a byte counter between the two."
    )
    yield ""
    yield "## Limits"
    yield ""
    rows = [
        (d["engine"], d["version"] or "-", str(d["context"]), str(d["pool"]), str(d["limit"]))
        for d in (found["discovery"] for found in (*engines.values(), small))
    ]
    yield from table(
        ("Engine", "Version", "Context advertised", "KV pool", "Limit L discovered"), rows
    )
    for found in engines.values():
        yield f"### {found['discovery']['engine']} around L = {found['discovery']['limit']}"
        yield ""
        yield from limits(found)
    yield "## Counts"
    yield ""
    yield (
        "Varied requests from a fixed seed (`tests/engines/corpus.py`), until the engine accepted"
        " 500. poolgate's count is compared with the usage the engine reports. `asked` are those"
        " of the exact ones that the engine's own counting endpoint counted. `refused` are"
        " requests the engine refused, and those both refused for length; poolgate refused none"
        " that the engine takes."
    )
    yield ""
    yield from table(
        ("Engine", "Accepted", "Exact", "asked", "Not verifiable", "Mismatches", "refused"),
        [corpus(found["discovery"]["engine"], found) for found in engines.values()],
    )
    yield "## Deploy gate"
    yield ""
    reports = [(found["discovery"]["engine"], found["gate"]) for found in engines.values()]
    reports.append((small["discovery"]["engine"], small["gate"]))
    yield from table(
        ("Engine", "Exit", "Verdict", "Findings", "Not passed"),
        [gate(name, report) for name, report in reports],
    )
    yield "## The incident's shape: a pool of half the context"
    yield ""
    yield (
        "SGLang with `--context-length 1024 --max-total-tokens 512` starts without complaint and"
        f" advertises {small['discovery']['context']}; poolgate discovers"
        f" {small['discovery']['limit']}."
    )
    yield ""
    yield from table(
        ("Tokens", "Gateway", "Engine, /v1/completions", "Engine, /generate, stream"),
        [
            (length, seen["gateway"].split()[0], seen["direct"], seen["direct_native_stream"])
            for length, seen in small["limits"].items()
        ],
    )
    if (ENGINES / "sglang_pd.ready").exists():
        yield from incident(load("sglang_pd"))
    yield NOTES.read_text("utf-8").rstrip("\n")


def main() -> None:
    TARGET.write_text("\n".join(document()) + "\n", "utf-8")
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
