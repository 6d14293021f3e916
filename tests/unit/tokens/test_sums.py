"""A sum made at once is what adding one after another gives: Jinja is the oracle here."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from gateway.tokens.sums import summing_at_once, total


class Word(str):
    """A text of another kind, which may add in a way of its own."""

    __slots__ = ()

    def __add__(self, other: str) -> str:
        return f"{self} and {other}"

    def __radd__(self, other: str) -> str:
        return f"{other} then {self}"


VALUES = (
    "text", "", "\u00e9\U0001f600", 1, 2.5, True, None, ["list"], (), Word("word"), Markup("<b>"),
)  # fmt: skip
SHAPES = (
    "a + b + c",
    "a + b + c + a",
    "a + (b + c) + a",
    "(a + b) + (c + a)",
    "a + b",
    "'x' + a + '\n' + b + 'y'",
    "'x' + 'y' + 'z' + a",
    "1 + 2 + 3",
    "a + b ~ c + a",
    "a + b + missing",
    "missing.member + b + c",
    "[a] + [b] + [c]",
    "(a + b + c)|length",
    "a + '-' + b if a + b + c else c",
)


def outcome(template: jinja2.Template, values: dict[str, Any]) -> str | type[Exception]:
    try:
        return template.render(values)
    except Exception as error:  # what is wrong with a chat refuses it, whatever it is
        return type(error)


def both(source: str) -> tuple[jinja2.Template, jinja2.Template]:
    """Jinja's own, and the one that sums at once."""
    first = ImmutableSandboxedEnvironment().from_string(source)
    second = ImmutableSandboxedEnvironment().from_string(source)
    return first, summing_at_once(second, source)


@pytest.mark.parametrize("shape", SHAPES)
def test_same_as_one_after_another(shape: str) -> None:
    plain, at_once = both("{{ " + shape + " }}")
    for a in VALUES:
        for b in VALUES:
            for c in VALUES:
                values = {"a": a, "b": b, "c": c}
                expected, found = outcome(plain, values), outcome(at_once, values)
                # Of two errors either may be the first.
                assert expected == found or (
                    isinstance(expected, type) and isinstance(found, type)
                ), values


@given(st.lists(st.text(), min_size=3, max_size=6))
def test_any_texts(texts: list[str]) -> None:
    assert total(texts) == "".join(texts)


def test_in_loops_and_macros() -> None:
    source = (
        "{% macro turn(m) %}{{ '<' + m.role + '>' + m.content + '</' }}{% endmacro %}"
        "{% for m in messages %}{% set head = m.role + ':' + loop.index0|string %}"
        "{{ head + ' ' + turn(m) + '\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "Hi"}, {"role": "tool", "content": "1"}]
    plain, at_once = both(source)
    assert at_once.render(messages=messages) == plain.render(messages=messages)


def test_texts_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of texts is one call, of all its operands."""
    template = summing_at_once(*_template("{{ 'a' + b + 'c' + d + 'e' }}"))
    asked: list[Any] = []
    monkeypatch.setattr(
        template.environment, "total", lambda operands: asked.append(operands) or "sum"
    )
    assert template.render(b="b", d="d") == "sum"
    assert asked == [("a", "b", "c", "d", "e")]


def _template(source: str) -> tuple[jinja2.Template, str]:
    return ImmutableSandboxedEnvironment().from_string(source), source
