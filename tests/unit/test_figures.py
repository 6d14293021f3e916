"""Figures of pages are those that were recorded, and what looks them up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.figures import Figure, at, marked, marks, recorded

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FIGURES = [
    pytest.param(figure, id=f"{page.name} {figure.name}")
    for page in PAGES
    for figure in marked(page.read_text("utf-8"))
]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_what_was_recorded(figure: Figure) -> None:
    assert figure.rounds_from(recorded(figure)), f"recorded: {recorded(figure):,.6g}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_mark_stands_behind_a_number(page: Path) -> None:
    text = page.read_text("utf-8")
    assert len(list(marked(text))) == marks(text)


def test_the_readme_has_marked_figures() -> None:
    assert list(marked((ROOT / "README.md").read_text("utf-8")))


@pytest.mark.parametrize(
    ("shown", "value", "so"),
    [
        ("0.16", 0.1574, True), ("0.16", 0.1545, False), ("793", 793.4, True), ("793", 794, False),
        ("1,300", 1261, True), ("1,300", 1240, False), ("50,000", 50_000, True), ("0", 0, True),
        ("0", 0.6, False), ("1.0", 1.04, True), ("1.0", 1.06, False),
    ],
)  # fmt: skip
def test_a_number_is_what_rounds_to_it(shown: str, value: float, so: bool) -> None:
    assert Figure(shown, "proxy", "x").rounds_from(value) is so


def test_marks_are_read_with_their_units_and_not_in_code() -> None:
    page = """
A call takes **0.8 ms**<!-- figure: proxy.lines[poolgate,1 kB].cpu_us / 1000 -->, 14
times<!-- figure: proxy.x --> and 1,200.5<!-- figure: soak.calls -->.
```
no 5<!-- figure: not.this -->
```
"""
    found = list(marked(page))
    assert found == [
        Figure("0.8", "proxy", "lines[poolgate,1 kB].cpu_us", 1000.0),
        Figure("1,200.5", "soak", "calls"),
    ]
    assert marks(page) == 3  # one stands on another line than its number


RUN = {"rows": [{"n": 1, "kind": "a", "us": 7.5}, {"n": 2, "kind": "a", "us": 9}], "calls": 3}


def test_a_path_leads_to_a_number() -> None:
    assert at(RUN, "calls") == 3
    assert at(RUN, "rows[2].us") == 9
    assert at(RUN, "rows[a,1].us") == 7.5


@pytest.mark.parametrize(
    ("path", "error"), [("rows[a].us", ValueError), ("rows[3].us", ValueError), ("x", KeyError)]
)
def test_a_path_to_nothing_is_told(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        at(RUN, path)


def test_each_figure_of_the_readme_is_measured_by_a_command(capsys) -> None:
    assert benchmarks.main(["--dry"]) == 0
    told = capsys.readouterr().out
    for figure in marked((ROOT / "README.md").read_text("utf-8")):
        assert f"benchmarks.{figure.source.partition('-')[0]}" in told
        assert figure.name in told


def test_a_figure_that_is_not_as_recorded_fails(tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text("7<!-- figure: soak.calls -->, 8<!-- figure: nothing.here -->\n")
    assert benchmarks.main(["--dry", str(page)]) == 1
    assert capsys.readouterr().out.count("NOT AS RECORDED") == 2
