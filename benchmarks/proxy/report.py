"""Medians over rounds, ratios, and the table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.proxy.peers import BASELINE, DIRECT, LITELLM


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one peer at one body size. Shares are of a whole core; times microseconds."""

    peer: str
    body: str
    round: int
    per_second: float
    p50_us: float
    p99_us: float
    single_p50_us: float
    single_p99_us: float
    cpu_us: float
    proxy_busy: float
    proxy_foreign: float
    calls: int


@dataclass(frozen=True, slots=True)
class Line:
    """The medians of one peer at one body size; ``added_*`` is over the direct way."""

    peer: str
    body: str
    per_second: float
    slowest_round: float
    fastest_round: float
    to_baseline: float | None
    to_litellm: float | None
    added_p50_us: float | None
    added_p99_us: float | None
    loaded_p99_us: float
    cpu_us: float
    proxy_busy: float
    proxy_foreign: float


def lines(samples: Sequence[Sample]) -> list[Line]:
    """One line a peer and size, in the order in which they were measured first."""
    return [
        _line([s for s in samples if (s.peer, s.body) == key], _direct(samples, key[1]), samples)
        for key in dict.fromkeys((s.peer, s.body) for s in samples)
    ]


def _line(mine: Sequence[Sample], direct: Sequence[Sample], samples: Sequence[Sample]) -> Line:
    first = mine[0]
    rates = [s.per_second for s in mine]
    rate = median(rates)
    added = bool(direct) and first.peer != DIRECT
    return Line(
        peer=first.peer,
        body=first.body,
        per_second=rate,
        slowest_round=min(rates),
        fastest_round=max(rates),
        to_baseline=_ratio(rate, samples, BASELINE, first.body),
        to_litellm=_ratio(rate, samples, LITELLM, first.body),
        added_p50_us=_over(mine, direct, "single_p50_us") if added else None,
        added_p99_us=_over(mine, direct, "single_p99_us") if added else None,
        loaded_p99_us=median(s.p99_us for s in mine),
        cpu_us=median(s.cpu_us for s in mine),
        proxy_busy=median(s.proxy_busy for s in mine),
        proxy_foreign=median(s.proxy_foreign for s in mine),
    )


def _direct(samples: Iterable[Sample], body: str) -> list[Sample]:
    return [s for s in samples if s.peer == DIRECT and s.body == body]


def _over(mine: Sequence[Sample], direct: Sequence[Sample], name: str) -> float:
    return float(median(getattr(s, name) for s in mine) - median(getattr(s, name) for s in direct))


def _ratio(rate: float, samples: Iterable[Sample], peer: str, body: str) -> float | None:
    rates = [s.per_second for s in samples if s.peer == peer and s.body == body]
    return rate / median(rates) if rates and median(rates) > 0 else None


COLUMNS = (
    "proxy", "r/s", "rounds", "x aiohttp", "x LiteLLM", "added p50", "added p99", "p99 at load",
    "CPU a call", "core",
)  # fmt: skip
LEGEND = """\
`r/s`: median over rounds at load, then the slowest and fastest round. `added`: one connection, over
the direct way. `CPU a call`: processor time of the proxy for one call at load, the figure that
other processes on the machine disturb least. `core`: share of its core the proxy used (well below
100%: something else was the limit), then the share that other processes took from it."""


def markdown(run: dict[str, Any]) -> str:
    """The whole report. ``run`` is what goes into the JSON file."""
    found = [Line(**line) for line in run["lines"]]
    parts = [_preface(run)]
    for body in dict.fromkeys(line.body for line in found):
        rows = sorted((x for x in found if x.body == body), key=lambda x: -x.per_second)
        counted = run["prompt_tokens"].get(body)
        title = f"\n## {body} body" + (f", {counted:,} prompt tokens (Qwen3)" if counted else "")
        rule = ["---", *["---:"] * (len(COLUMNS) - 1)]
        cells = [COLUMNS, rule, *(_row(row) for row in rows)]
        parts.append(f"{title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in cells))
    return "\n".join(parts) + "\n"


def _preface(run: dict[str, Any]) -> str:
    machine, plan = run["machine"], run["plan"]
    versions = ", ".join(f"{name} {text}" for name, text in run["versions"].items() if text)
    skipped = "; ".join(f"{name}: {why}" for name, why in run["skipped"].items()) or "none"
    checks = ", ".join(f"{name} {n:,}" for name, n in run["poolgate_checks"].items()) or "not run"
    return (
        f"# Proxies on one core, {run['when']}\n\n"
        f"{machine['cpu']}, {machine['usable_cores']} cores"
        f"{' (virtual)' if machine['virtual'] else ''}, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}.\n"
        f"Versions: {versions}.\nSkipped: {skipped}.\n"
        f"{plan['rounds']} rounds; {plan['seconds']} s at {plan['connections']} connections, "
        f"{plan['single_seconds']} s at one. {run['calls']:,} calls, each answer checked, each "
        f"seen once by the upstream.\npoolgate's checks of these answers: {checks}.\n\n"
        f"{LEGEND}"
    )


def _row(line: Line) -> Sequence[str]:
    return (
        line.peer,
        f"{line.per_second:,.0f}",
        f"{line.slowest_round:,.0f}..{line.fastest_round:,.0f}",
        _times(line.to_baseline),
        _times(line.to_litellm),
        _time(line.added_p50_us),
        _time(line.added_p99_us),
        _time(line.loaded_p99_us),
        _time(line.cpu_us or None),
        _core(line),
    )


def _core(line: Line) -> str:
    return "" if line.peer == DIRECT else f"{line.proxy_busy:.0%}, {line.proxy_foreign:.0%}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _time(us: float | None) -> str:
    if us is None:
        return ""
    return f"{us:,.0f} µs" if abs(us) < 1000 else f"{us / 1000:,.1f} ms"


def as_json(samples: Sequence[Sample], found: Sequence[Line]) -> dict[str, Any]:
    """Both as plain values."""
    return {"lines": [asdict(x) for x in found], "samples": [asdict(x) for x in samples]}
