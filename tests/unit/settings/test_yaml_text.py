from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.yaml_text import _FastLoader, _read_slowly, load


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("off", "off"), ("on", "on"), ("yes", "yes"), ("No", "No"), ("true", True),
        ("FALSE", False), ("12:30", "12:30"), ("010", "010"), ("0x1f", "0x1f"), ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"), ("10s", "10s"), ("7", 7), ("-7", -7), ("+7", 7), ("1.5", 1.5),
        ("1e3", "1e3"), (".nan", ".nan"), ("~", None), ("null", None), ("", None),
        ("'7'", "7"), ('"null"', "null"), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_scalars_are_those_of_the_core_schema(scalar: str, value: object) -> None:
    loaded, problems = load(f"key: {scalar}\n")
    assert problems == []
    assert loaded == {"key": value}
    assert type(loaded["key"]) is type(value)


def test_every_repeated_key_is_told_and_the_value_still_given() -> None:
    value, problems = load("a: 1\nb: {c: 1, c: 2}\na: 3\nd:\n  - e: 1\n    e: 2\n    e: 3\n")
    assert {str(problem) for problem in problems} == {
        "a: written twice, on lines 1 and 3",
        "b.c: written twice, on lines 2 and 2",
        "d[0].e: written twice, on lines 5 and 6",
        "d[0].e: written twice, on lines 6 and 7",
    }
    assert value["a"] == 3


def test_a_merge_may_be_overridden() -> None:
    value, problems = load("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert (value["b"], problems) == ({"x": 1, "y": 3}, [])


def test_a_fault_behind_an_anchor_is_told_once() -> None:
    _, problems = load("a: &a {x: 1, x: 2}\nb: *a\nc: *a\n")
    assert [problem.path for problem in problems] == ["a.x"]


@given(st.text(max_size=60) | st.text(alphabet="ab:-[]{}&*!?|> \n\"'#~<", max_size=40))
def test_any_text_is_a_value_or_a_problem_and_never_an_exception(text: str) -> None:
    value, problems = load(text)
    assert value is None or all(" written twice" in str(problem) for problem in problems)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: [x, 'y', \"z\"]\n", "a: &a {x: 1}\nb: {<<: *a, y: 2}\n", "{a: off, b: 010}",
        "a: |\n  one\n  two\nb: >-\n  three\n", "- {a: 1, a: 2}\n- b\n", "a: '\U0001f600 é'\n",
        "a: [1\n", "a: b: c\n", "a: *nobody\n", "a: !!python/object:os.system x\n",
        "a: 1\n---\nb: 2\n",
        '{"a": "\\ud83d\\ude00"}', "", "# nothing\n",
    ],
)  # fmt: skip
def test_the_fast_parser_reads_what_pyyamls_own_reads(text: str) -> None:
    assert load(text) == _read_slowly(text)


def test_libyaml_parses_where_it_is_there() -> None:
    """Or ten thousand tenants take five seconds."""
    assert yaml.__with_libyaml__
    assert issubclass(_FastLoader, yaml.CSafeLoader)
