"""Numbers as a C++ stream writes them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.rendering.common import Unrenderable
from gateway.rendering.llama_cpp_json import as_printed, parsed


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (1.0, "1"),
        (0.1234567, "0.123457"),
        (100000.0, "100000"),
        (2.5, "2.5"),
        (1e21, "1e+21"),
        (1e-07, "1e-07"),
        (2**63 - 1, "9223372036854775807"),
        (True, "true"),
        ({"a": [1.0, None, "1.0"]}, '{"a": [1, null, "1.0"]}'),
    ],
)
def test_printed(value: object, printed: str) -> None:
    assert json.dumps(as_printed(value)) == printed


@pytest.mark.parametrize("value", [1e6, 12345678.0, -0.0, 2**63, -(2**63) - 1, [{"a": 1e6}]])
def test_what_python_prints_otherwise_is_not_guessed(value: object) -> None:
    with pytest.raises(Unrenderable, match="number_format"):
        as_printed(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_float_is_the_six_digits_or_refused(value: float) -> None:
    try:
        shown = json.dumps(as_printed(value))
    except Unrenderable:
        return
    assert shown == f"{value:g}"


@pytest.mark.parametrize("text", ["", "{", "NaN", "[Infinity]", "[" * 100_000])
def test_no_json(text: str) -> None:
    with pytest.raises(Unrenderable, match="malformed"):
        parsed(text)


def test_any_json_value_will_do() -> None:
    assert [parsed(text) for text in ("[1]", '"a"', "null", "{}")] == [[1], "a", None, {}]
