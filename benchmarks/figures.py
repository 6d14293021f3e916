"""Figures of pages, marked with where they were recorded, and what was recorded there.

A page marks a figure by a comment behind it, which no reader sees:

    a 1 kB call takes 793<!-- figure: proxy.lines[poolgate,1 kB].cpu_us --> µs

The first word is a file of ``benchmarks/results``; the rest is the way to the number in it: a
member, or in brackets the one item of a list that has all those values among its own. ``/ 1000``
after it divides. Pure but for ``recorded``, which reads a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_MARK = re.compile(
    r"(?P<shown>\d[\d,]*(?:\.\d+)?)[^\d\n<]{0,12}<!-- figure: (?P<of>.+?) -->"  # a unit between
)
_STEP = re.compile(r"(?P<member>[^.\[\]]+)|\[(?P<item>[^\]]+)\]")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number as a page shows it, and where it is from."""

    shown: str
    source: str  # a results file, without .json
    path: str
    divisor: float = 1.0

    @property
    def value(self) -> float:
        """The number shown."""
        return float(self.shown.replace(",", ""))

    @property
    def name(self) -> str:
        """As the page marks it."""
        divided = f" / {self.divisor:g}" if self.divisor != 1 else ""
        return f"{self.source}.{self.path}{divided}"

    def rounds_from(self, value: float) -> bool:
        """Whether ``value``, rounded as this number is, gives it.

        Zeros at the end of a whole number are taken for rounding: 1,200 is from 1,150 to 1,250.
        """
        digits = self.shown.replace(",", "")
        whole, _, decimals = digits.partition(".")
        zeros = len(whole) - len(whole.rstrip("0")) if not decimals and whole.strip("0") else 0
        unit = 10.0 ** (zeros - len(decimals))
        return bool(abs(value - self.value) <= unit / 2 * (1 + 1e-9))


def marked(page: str) -> Iterator[Figure]:
    """Every marked figure of a page, but for those in blocks of code."""
    for found in _MARK.finditer(_FENCE.sub("", page)):
        of, _, divisor = found["of"].partition(" / ")
        source, _, path = of.partition(".")
        yield Figure(found["shown"], source, path, float(divisor or 1))


def marks(page: str) -> int:
    """How many marks there are, whether or not a number stands before them."""
    return _FENCE.sub("", page).count("<!-- figure:")


def recorded(figure: Figure, folder: Path = RESULTS) -> float:
    """What a run recorded for it. Raises OSError, KeyError or ValueError where it did not."""
    run = json.loads((folder / f"{figure.source}.json").read_text("utf-8"))
    return float(at(run, figure.path)) / figure.divisor


def at(run: Any, path: str) -> Any:
    """What lies at a path. Raises KeyError, or ValueError where items are none or several."""
    for step in _STEP.finditer(path):
        if step["member"] is not None:
            run = run[step["member"]]
            continue
        wanted = set(step["item"].split(","))
        items = [item for item in run if wanted <= {str(value) for value in item.values()}]
        if len(items) != 1:
            raise ValueError(f"{path}: {len(items)} items have {step['item']}")
        [run] = items
    return run
