"""One line each, and never a flood."""

from __future__ import annotations

import logging

import pytest

from gateway.edge import quiet as limits
from gateway.edge.logs import JsonLines, TextLines
from gateway.edge.quiet import BURST, PERIOD, Quiet


def record(message: str = "request %s failed", *values: object, at: float = 0.0, name: str = "x"):
    made = logging.LogRecord(name, logging.ERROR, "f.py", 1, message, values, None)
    made.created = at
    return made


def test_of_one_kind_a_few_pass_and_the_rest_is_counted() -> None:
    quiet = Quiet()
    told = [quiet.filter(record("failed %s", number, at=number / 100)) for number in range(50)]
    assert told == [True] * BURST + [False] * (50 - BURST)
    again = record("failed %s", "anew", at=PERIOD + 0.01)
    assert quiet.filter(again)
    assert again.getMessage() == f"failed anew ({50 - BURST} more like it were left out)"
    after = record("failed %s", "then", at=PERIOD + 0.02)
    assert quiet.filter(after)
    assert after.getMessage() == "failed then"


def test_other_kinds_pass_meanwhile() -> None:
    quiet = Quiet()
    for _ in range(BURST + 1):
        quiet.filter(record())
    assert not quiet.filter(record())
    assert quiet.filter(record("another %s", 1))
    assert quiet.filter(record(name="another"))


def test_incidents_are_all_told() -> None:
    quiet = Quiet()
    assert all(quiet.filter(record(name="poolgate.incident")) for _ in range(10 * BURST))


def test_lines_without_a_template_take_no_memory() -> None:
    quiet = Quiet()
    for number in range(3 * limits.MOST_KINDS):
        quiet.filter(record(f"line {number}"))
    assert len(quiet._kinds) <= limits.MOST_KINDS


@pytest.mark.parametrize(
    "hostile", ["a\nERROR forged", "a\r\nb", "a\x1b[2Jb", "a\x00b", "a\u2028b", "a\x85b", "a\x0bb"]
)
@pytest.mark.parametrize("lines", [TextLines(), JsonLines()])
def test_no_value_begins_a_line_or_moves_a_cursor(hostile: str, lines: logging.Formatter) -> None:
    line = lines.format(record("value %s", hostile))
    assert line.isprintable()
    assert "value a\\" in line
    assert len(line.splitlines()) == 1
