"""What each step of a call costs: ``python -m benchmarks.budget [--publish]``.

Samples poolgate at load with py-spy, a body size after the other, and gives each sample to the step
whose function is the innermost on its stack. The table is the budget of docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from benchmarks.proxy import peers
from benchmarks.proxy.__main__ import SIZES
from benchmarks.proxy.machine import describe
from benchmarks.proxy.publish import ROOT, placed
from benchmarks.proxy.rig import Cores
from benchmarks.proxy.traffic import chat_body
from benchmarks.where_time_goes import sampled, stacks

BEGIN = "<!-- budget: begin -->"
ELSE = "the path's own code"
WAITING = "event loop and kernel"

# A step, and what its functions are known by: a part of "function (file", as py-spy writes it.
STEPS: Mapping[str, tuple[str, ...]] = {
    "server side of aiohttp": ("(aiohttp/web_", "(gateway/edge/connections"),
    "read the body": ("read_body (",),
    "parse": ("(gateway/dialects/wire", "(gateway/dialects/unambiguous", "Dialect.parse ("),
    "tenant, route, limits of length": (
        "(gateway/core/tenants", "(gateway/edge/routing", "(gateway/core/admission",
        "(gateway/edge/backends", "(gateway/dialects/isolation", "(gateway/edge/placing",
    ),
    "render": ("(gateway/rendering", "(gateway/tokens/template", "(gateway/tokens/rules"),
    "bound and count": (
        "(gateway/tokens", "(gateway/edge/counting", "(gateway/edge/calibration",
        "(gateway/edge/media",
    ),
    "quotas": (
        "(gateway/edge/leases", "(gateway/limits", "(gateway/core/settlement",
        "(gateway/edge/store",
    ),
    "what was sent before": (
        "(gateway/edge/recollection", "(gateway/core/prefixes", "(gateway/core/attestation",
        "(gateway/dialects/prompt_text",
    ),
    "engine side of aiohttp": ("(aiohttp/client", "(aiohttp/connector", "(gateway/edge/upstream"),
    "edit the body": ("Call.body (",),
    "judge the answer": (
        "(gateway/edge/inspection", "(gateway/dialects/answers", "(gateway/core/spotcheck",
        "(gateway/core/latency", "(gateway/edge/relay", "(gateway/dialects/openai",
    ),
    "record": (
        "(gateway/edge/record", "(gateway/edge/live", "(gateway/edge/access_log",
    ),
}  # fmt: skip
LOOP = ("Runner.run (", "BaseEventLoop", "run (uvloop")


def step_of(frames: list[str]) -> str:
    """The step of a stack, outermost frame first: that of its innermost frame that is of one."""
    for frame in reversed(frames):
        for step, marks in STEPS.items():
            if any(mark in frame for mark in marks):
                return step
        if "(gateway/edge/" in frame:
            return ELSE
        if frame.startswith(LOOP):
            return WAITING
    return ELSE


def budget(folded: str, cpu_us: float) -> dict[str, float]:
    """Microseconds of processor time of each step of a call."""
    found: Counter[str] = Counter()
    for frames, count in stacks(folded):
        found[step_of(frames)] += count
    total = sum(found.values())
    return {step: found[step] / total * cpu_us for step in (*STEPS, ELSE, WAITING)}


def markdown(budgets: Mapping[str, Mapping[str, float]]) -> str:
    """The table: a row a step, a column a size."""
    head = " | ".join(budgets)
    rows = [f"| step | {head} |", "| --- |" + " ---: |" * len(budgets)]
    for step in (*STEPS, ELSE, WAITING):
        cells = " | ".join(f"{each[step]:,.0f}" for each in budgets.values())
        rows.append(f"| {step} | {cells} |")
    cells = " | ".join(f"**{sum(each.values()):,.0f}**" for each in budgets.values())
    rows.append(f"| **all** | {cells} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=8, help="of sampling, each size")
    parser.add_argument("--priority", type=int, default=0, help="nice value, -20 to 19")
    parser.add_argument("--publish", action="store_true", help="into docs/performance.md")
    options = parser.parse_args()
    if options.priority:
        os.setpriority(os.PRIO_PROCESS, 0, options.priority)
    cores = Cores.of_this_machine()
    budgets = {}
    for name, size in SIZES.items():
        seen = sampled(peers.POOLGATE, chat_body(name, size), cores, options.seconds, 400)
        budgets[name] = budget(seen.folded, seen.cpu_us)
    machine = describe()
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = (
        f"Microseconds of processor time a call at 16 connections, {when}, {machine['cpu']}, "
        f"Python {machine['python']}.\n\n{markdown(budgets)}"
    )
    print(text)
    if options.publish:
        page = ROOT / "docs/performance.md"
        page.write_text(placed(page.read_text(), text, BEGIN))
    return 0


if __name__ == "__main__":
    sys.exit(main())
