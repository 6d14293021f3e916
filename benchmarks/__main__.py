"""``python -m benchmarks``: runs what is behind the README's figures, and compares.

Looks for marked figures (``benchmarks.figures``) in README.md, or in the pages given, runs each
benchmark that they were recorded by, and prints for each figure what the page says, what is
recorded and what was measured now. ``--quick`` takes a few minutes and is rougher; without it, as
long as the benchmarks together. Nothing recorded is changed; ``--out`` keeps the new runs. Exit 0
where every benchmark ended well and every figure is as recorded; another machine gives other
numbers, so those measured now decide nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.figures import RESULTS, Figure, marked, recorded

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What writes a results file: its command, and what makes it full or quick.

    ``{out}`` is the folder for results, ``{parts}`` the parts that figures need. ``asked`` are
    members that say what was asked of it: they are no measurement, and less in a quick run.
    """

    command: str
    full: str
    quick: str
    asked: frozenset[str] = frozenset()

    def argv(self, out: Path, parts: Iterable[str], *, quick: bool) -> list[str]:
        """The words of the command."""
        words = f"{self.command} {self.quick if quick else self.full}".split()
        filled = [word.format(out=out, parts="\0".join(parts)) for word in words]
        return [sys.executable, "-m", *(part for word in filled for part in word.split("\0"))]


BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "proxy": Benchmark(
            "benchmarks.proxy --out {out}",
            "--rounds 2 --seconds 2.5 --single-seconds 1.2",
            "--rounds 1 --seconds 1 --single-seconds 0.5",
            frozenset({"prompt_tokens", "plan"}),
        ),
        "growth": Benchmark("benchmarks.growth {parts} --out {out}/growth.json", "", "--quick"),
        "counting": Benchmark("benchmarks.counting --out {out}", "", "--rounds 1 --http-seconds 1"),
        "soak": Benchmark(
            "benchmarks.soak --report {out}/soak.json",
            "--calls 50000 --restarts 0",
            "--calls 1000 --restarts 0",
            frozenset({"calls", "restarts"}),
        ),
        "soak-restarts": Benchmark(
            "benchmarks.soak --report {out}/soak-restarts.json",
            "--calls 0 --restarts 50",
            "--calls 0 --restarts 1",
            frozenset({"calls", "restarts"}),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure of a page beside what was recorded and what was measured now."""

    page: str
    figure: Figure
    recorded: float | None
    now: float | None

    @property
    def as_recorded(self) -> bool:
        """Whether the page shows what was recorded."""
        return self.recorded is not None and self.figure.rounds_from(self.recorded)

    def row(self) -> str:
        """For people."""
        ratio = self.now / self.figure.value if self.now is not None and self.figure.value else None
        told = "" if self.as_recorded else "  NOT AS RECORDED"
        return (
            f"{self.figure.shown:>12} {_number(self.recorded):>12} {_number(self.now):>12} "
            f"{'' if ratio is None else f'x {ratio:.2f}':>8}  {self.page}: {self.figure.name}{told}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, default=[ROOT / "README.md"])
    parser.add_argument("--quick", action="store_true", help="in a few minutes")
    parser.add_argument("--out", type=Path, help="a folder to keep what is measured in")
    parser.add_argument("--dry", action="store_true", help="only say what would be run")
    options = parser.parse_args(argv)
    figures = [(page.name, figure) for page in options.pages for figure in marked(page.read_text())]
    with tempfile.TemporaryDirectory(prefix="poolgate-bench-") as folder:
        out = options.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        well = True
        for source in dict.fromkeys(figure.source for _, figure in figures):
            well &= _run(source, [f for _, f in figures if f.source == source], out, options)
        claims = [
            Claim(page, figure, _found(figure, RESULTS), _now(figure, out, quick=options.quick))
            for page, figure in figures
        ]
    print(f"{'page':>12} {'recorded':>12} {'now':>12} {'now/page':>8}")
    for claim in claims:
        print(claim.row())
    return 0 if well and all(claim.as_recorded for claim in claims) else 1


def _run(source: str, figures: Iterable[Figure], out: Path, options: argparse.Namespace) -> bool:
    """Whether what writes this file ended well. Its own report goes where ours does."""
    benchmark = BENCHMARKS.get(source)
    if benchmark is None:
        print(f"{source}: not run here; see the page of its figures", flush=True)
        return True
    parts = dict.fromkeys(figure.path.partition(".")[0] for figure in figures)
    argv = benchmark.argv(out, parts, quick=options.quick)
    print("$", *argv, flush=True)
    return options.dry or subprocess.run(argv, cwd=ROOT, check=False).returncode == 0


def _found(figure: Figure, folder: Path) -> float | None:
    try:
        return recorded(figure, folder)
    except (OSError, KeyError, ValueError):
        return None


def _now(figure: Figure, out: Path, *, quick: bool) -> float | None:
    """What was measured; nothing where a quick run was only asked for less."""
    benchmark = BENCHMARKS.get(figure.source)
    asked = benchmark is not None and figure.path.partition(".")[0] in benchmark.asked
    return None if quick and asked else _found(figure, out)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
