"""Cases as bytes."""

from __future__ import annotations

import pytest

from gateway.core.casefile import MOST_CASES, read, written
from gateway.core.quarantine import NOTHING, Case, Clue, Mark
from gateway.types import Evidence

CLUE = Clue(1.8e9 + 0.123456, "latency", "t", Evidence.STRONG, True, "inc_1")
FULL = Case(Mark(5.25, "operator"), (CLUE,), Mark(7.5, "binding"))


def test_what_is_written_is_read_again():
    cases = {("a", "http://a"): FULL, ("b", "http://b"): Case(clues=(CLUE,))}
    assert read(written(cases | {("c", "http://c"): NOTHING})) == cases
    assert written(cases) == written(dict(reversed(cases.items())))
    assert read(written({})) == {}


def test_of_too_many_the_latest_are_written():
    cases = {(f"{n}", "u"): Case(Mark(float(n), "x")) for n in range(MOST_CASES + 5)}
    assert read(written(cases)).keys() == {(f"{n}", "u") for n in range(5, MOST_CASES + 5)}


@pytest.mark.parametrize("bad", [b"", b"{}", b"[1]", b'[["a","u",{"clues":[{}]}]]', b"\xff"])
def test_what_is_no_case_file_is_refused(bad):
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's own words
        read(bad)
