"""The tables of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.proxy.peers import DIRECT
from benchmarks.streams.contenders import PEERS

CARRIED = 0.99  # of what was to come in the time; less, and delays only grow
LEGEND = """\
`events/s`: carried, of 50 a stream and second that are offered; `behind`: fewer came, and delays
grew as long as it lasted. `added`: how much later than due an event arrives, over the direct way's
same figure. `CPU an event`: processor time of the proxy, and of it that outside the kernel. `core`:
share of its core the proxy used, then the share that other processes took from it."""
COLUMNS = ("proxy", "streams", "events/s", "added p50", "added p99", "max", "CPU an event", "core")


def markdown(run: Mapping[str, Any]) -> str:
    """All of it, from the JSON file's contents."""
    machine = run["machine"]
    skipped = "; ".join(f"{name}: {why}" for name, why in run["skipped"].items())
    parts = [
        f"### Streams through one core, {run['when']}\n\n"
        f"{machine['cpu']}, {machine['usable_cores']} cores"
        f"{' (virtual)' if machine['virtual'] else ''}, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}. "
        f"{run['seconds']:g} s each."
        + (f"\nSkipped: {skipped}." if skipped else "")
        + f"\n\n{LEGEND}\n",
        _table(COLUMNS, map(_row, _ordered(run["samples"]), _directs(run["samples"]))),
    ]
    if run["memory"]:
        counts = sorted({int(count) for kept in run["memory"].values() for count in kept})
        remembered = sorted(run["memory"], key=list(PEERS).index)
        columns = ("proxy", *(f"{count:,} streams" for count in counts), "a stream")
        parts += [
            "\nResident memory while streams are open that have had two events and wait:\n",
            _table(columns, (_kept(name, run["memory"][name], counts) for name in remembered)),
        ]
    return "\n".join(parts) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))


def _ordered(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    names = list(PEERS)
    return sorted(samples, key=lambda x: (names.index(x["peer"]), x["streams"]))


def _directs(samples: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | None]:
    """For each sample the direct way's with as many streams."""
    direct = {x["streams"]: x for x in samples if x["peer"] == DIRECT}
    for sample in _ordered(samples):
        yield None if sample["peer"] == DIRECT else direct.get(sample["streams"])


def behind(sample: Mapping[str, Any]) -> bool:
    """Whether fewer events came than were to come."""
    return float(sample["per_second"]) < CARRIED * float(sample["offered"])


def _row(sample: Mapping[str, Any], direct: Mapping[str, Any] | None) -> Sequence[str]:
    is_direct = sample["peer"] == DIRECT
    late = [
        sample[name] - (direct[name] if direct and not name.startswith("max") else 0)
        for name in ("p50_us", "p99_us", "max_us")
    ]
    cpu, user = (sample[name] * 1e6 / max(1, sample["events"]) for name in ("cpu", "user"))
    return (
        sample["peer"],
        f"{sample['streams']:,}",
        f"{sample['per_second']:,.0f}" + (", behind" if behind(sample) else ""),
        *(_time(us) + (" late" if is_direct else "") for us in late),
        "" if is_direct else f"{cpu:.0f} µs, {user:.0f} µs",
        "" if is_direct else f"{sample['busy']:.0%}, {sample['foreign']:.0%}",
    )


def _kept(name: str, kept: Mapping[str, int], counts: Sequence[int]) -> Sequence[str]:
    sizes = {int(count): size for count, size in kept.items()}
    least, most = min(sizes), max(sizes)
    each = (sizes[most] - sizes[least]) / (most - least) / 1000
    cells = (f"{sizes[count] / 1e6:,.0f} MB" if count in sizes else "" for count in counts)
    return (name, *cells, f"{each:.0f} kB")


def _time(us: float) -> str:
    if abs(us) < 1000:
        return f"{us:,.0f} µs"
    return f"{us / 1000:,.1f} ms" if abs(us) < 1e6 else f"{us / 1e6:,.1f} s"
