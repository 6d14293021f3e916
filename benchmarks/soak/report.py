"""A run for people: claims, and what became of the calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.soak.callers import Seen
from benchmarks.soak.judge import Claim


def as_json(claims: Sequence[Claim], seen: Iterable[Seen], about: dict[str, Any]) -> dict[str, Any]:
    """Everything that is kept of a run."""
    return {
        **about,
        "held": all(claim.held for claim in claims),
        "claims": [
            {
                "claim": claim.claim,
                "held": claim.held,
                "found": claim.found,
                "examples": list(claim.examples),
            }
            for claim in claims
        ],
        "outcomes": outcomes(seen),
    }


def outcomes(seen: Iterable[Seen]) -> dict[str, dict[str, int]]:
    """Calls by kind and outcome, most frequent first."""
    counts: dict[str, Counter[str]] = {}
    for one in seen:
        counts.setdefault(str(one.call.kind), Counter())[one.outcome] += 1
    return {kind: dict(counts[kind].most_common()) for kind in sorted(counts)}


def text(claims: Iterable[Claim]) -> str:
    """A line a claim, and what speaks against those that did not hold."""
    lines = []
    for claim in claims:
        lines.append(f"{'held  ' if claim.held else 'BROKEN'}  {claim.claim}: {claim.found}")
        if not claim.held:
            lines += [f"          {example}" for example in claim.examples]
    return "\n".join(lines)


def markdown(run: dict[str, Any]) -> str:
    """A run's tables for docs/soak.md."""
    claims = [
        [each["claim"] + ("" if each["held"] else " (**did not hold**)"), each["found"]]
        for each in run["claims"]
    ]
    ends = [
        [
            kind.replace("_", " "),
            ", ".join(f"{outcome} {number:,}" for outcome, number in found.items()),
        ]
        for kind, found in run["outcomes"].items()
    ]
    tables = [_about(run), _table(["claim", "found"], claims)]
    return "\n\n".join([*tables, _table(["call", "how they ended"], ends)] if ends else tables)


def _about(run: dict[str, Any]) -> str:
    on, took = run["machine"], run["took_s"]
    return (
        f"Seed {run['seed']}, {run['calls']:,} calls and {run['restarts']} restarts in"
        f" {took / 60:.1f} minutes, {run['when']}. {on['cpu']}, {on['usable_cores']} cores,"
        f" {on['memory_gib']} GiB, Linux {on['kernel']}, Python {on['python']}; load average before"
        f" it: {on['load_average_before']:.1f}."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
