"""Names that an object holds twice, and nesting without end."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.dialects import unambiguous, wire
from gateway.errors import Kind, Rejection

CHAT = {"model": "m", "messages": [{"role": "user", "content": 'a "b": c\\\n: :smile:'}]}


def repeats(raw: bytes) -> bool:
    return unambiguous.repeats_a_name(raw, msgspec.json.decode(raw))


@pytest.mark.parametrize(
    "form",
    [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}],
    ids=["spaced", "compact", "indented", "UTF-8"],
)
def test_no_form_of_an_honest_body_is_taken_for_a_repetition(form: dict[str, object]) -> None:
    body = {
        **CHAT,
        "x": [1.50, 1e-7, None, {"n\u00e9": {"": 0}}],
        'k\\": "': "\\",
        "e": {},
        "l": [],
    }
    raw = json.dumps(body, **form).encode()  # type: ignore[arg-type]
    assert not repeats(raw)
    assert not repeats(raw.replace(b'"model":', b'"model"\t\r\n :'))
    assert wire.decode_object(raw) == body


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ('{"model": "a", "model": "b"}', "model"),
        ('{"model":"a","model":"a"}', "model"),
        ('{"messages":[],"x":1,"mess\\u0061ges":[1]}', "messages"),
        ('{"messages":[{"role":"user","content":"x","content":"longer"}]}', "content"),
        ('{"tools":[{"a":{"b":[[{"c":1,"c":2}]]}}]}', "c"),
        ('{"a":1,"a" :2}', "a"),
        ('{"a":1,"a"\n\t:2}', "a"),
        ('{"x\\\\":1,"a":1,"a":2}', "a"),
        ('{"s":": \\":","a":1,"a":2}', "a"),
        ('{"":1,"":2}', ""),
        # As many colons as an honest one, and bytes of the same number.
        ('{"a":1,"a":2,"b\\"":":"}', "a"),
    ],
)
def test_a_name_that_is_there_twice_is_refused_and_named(raw: str, name: str) -> None:
    assert repeats(raw.encode())
    assert unambiguous.repeated_name(raw.encode()) == name
    with pytest.raises(Rejection) as refusal:
        wire.decode_object(raw.encode())
    assert refusal.value.kind is Kind.MALFORMED
    assert refusal.value.param == name
    assert "twice" in refusal.value.message


def test_a_large_body_or_a_strange_name_is_refused_without_naming() -> None:
    large = b'{"a":"%s","m":1,"m":2}' % (b"x" * 2**20)
    many = b'{"a":[%s0],"m":1,"m":2}' % (b'"s", ' * 250_000)
    for raw in (large, many, b'{"\\n":1,"\\n":2}'):
        with pytest.raises(Rejection, match="a field twice") as refusal:
            wire.decode_object(raw)
        assert refusal.value.param is None
    assert wire.decode_object(many.replace(b'"m":2', b'"n":2'))["n"] == 2


@pytest.mark.parametrize("opened", [b"[", b'{"a":'])
def test_nesting_is_bounded(opened: bytes) -> None:
    most = unambiguous.MOST_NESTED
    closing = b"]" if opened == b"[" else b"}"

    def body(depth: int, padding: int = 0) -> bytes:
        inner = opened * (depth - 1) + b"1" + closing * (depth - 1)
        return b'{"p":"%s","x":' % (b"x" * padding) + inner + b"}"

    for padding in (0, 2**16):
        assert wire.decode_object(body(most, padding))
        with pytest.raises(Rejection, match="nested deeper than 100"):
            wire.decode_object(body(most + 1, padding))
    for depth in (1000, 100_000):
        with pytest.raises(Rejection, match="nested deeper than 100"):
            wire.decode_object(body(depth))


def test_many_objects_beside_each_other_are_not_nested() -> None:
    raw = json.dumps({"m": [{"a": [{}]}] * 15_000}).encode()
    assert wire.decode_object(raw)


@pytest.mark.parametrize("item", [{}, [], {"a": 1}, [[1], {}]])
def test_too_many_objects_and_lists_are_refused_before_they_are_looked_at(item: object) -> None:
    raw = json.dumps({"m": [item] * 50_001}).encode()
    with pytest.raises(Rejection, match="over 50000 objects"):
        wire.decode_object(raw)


def test_a_million_strings_are_told_apart() -> None:
    """Where splitting at each quote would take too much memory, they are looked at in turn."""
    strings = b'"",' * 600_000
    assert len(wire.decode_object(b'{"m":[%s 0],"n" : 1}' % strings)["m"]) == 600_001
    with pytest.raises(Rejection, match="a field twice"):
        wire.decode_object(b'{"m":[%s 0],"n" : 1,"n" : 1}' % strings)
