"""Names that an object holds twice, and nesting without end."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import unambiguous, wire
from gateway.errors import Kind, Rejection

CHAT = {"model": "m", "messages": [{"role": "user", "content": 'a "b": c\\\n: :smile:'}]}


def repeats(raw: bytes) -> bool:
    return unambiguous.fault_of(raw, msgspec.json.decode(raw)) is unambiguous.Fault.REPEATS


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


_NAMES = st.text(st.sampled_from('ab":\\, {}é\n'), max_size=6)
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), _NAMES)
_BODIES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
)
_FORMS = st.sampled_from(
    [{}, {"separators": (",", ":")}, {"separators": (" ,", " : ")}, {"indent": 1}]
)


def strings(value: object) -> int:
    """As Python's parser tells of them, names among them, repeated ones as often as they are."""
    if isinstance(value, tuple):  # an object, of pairs
        return sum(1 + strings(member) for _, member in value)
    if isinstance(value, list):
        return sum(map(strings, value))
    return int(isinstance(value, str))


@given(st.dictionaries(_NAMES, _BODIES, max_size=4), _FORMS, st.booleans(), st.booleans())
def test_strings_are_counted_as_a_parser_does(
    body: dict[str, object], form: dict[str, object], ascii_only: bool, many: bool
) -> None:
    """Against Python's parser; also the way for very many strings."""
    raw = json.dumps(body, ensure_ascii=ascii_only, **form).encode()  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unambiguous, "_SHORT", 0)
        if many:
            patch.setattr(unambiguous, "_MANY_QUOTES", 0)
        assert unambiguous._strings_in(raw) == strings(json.loads(raw, object_pairs_hook=tuple))
        assert not repeats(raw)


class Pairs(tuple[tuple[str, object], ...]):
    """An object as it is written: names may be there twice."""


_PAIRS = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(_NAMES, inner), max_size=3).map(Pairs)  # the names are few and short
        | st.tuples(_NAMES, inner, inner).map(lambda two: Pairs([two[:2], (two[0], two[2])]))
    ),
)


def written(value: object, data: st.DataObject) -> str:
    """As JSON; any character of a text may be spelt as an escape with its number."""
    space = data.draw(st.sampled_from(["", " ", "\t\r\n"]))
    if isinstance(value, Pairs):
        members = (
            f"{written(name, data)}{space}:{written(member, data)}" for name, member in value
        )
        return "{" + f"{space},".join(members) + space + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(written(item, data) for item in value) + "]"
    if isinstance(value, str):
        spelt = (
            f"\\u{ord(character):04x}" if data.draw(st.booleans()) else json.dumps(character)[1:-1]
            for character in value
        )
        return f'"{"".join(spelt)}"'
    return json.dumps(value)


@given(st.lists(st.tuples(_NAMES, _PAIRS), max_size=3).map(Pairs), st.data(), st.booleans())
def test_what_is_refused_is_what_a_parser_finds_twice(
    body: Pairs, data: st.DataObject, many: bool
) -> None:
    raw = written(body, data).encode()
    with pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr(unambiguous, "_MANY_QUOTES", 0)
        for short in (2**16, 0):
            patch.setattr(unambiguous, "_SHORT", short)
            assert repeats(raw) == (unambiguous.repeated_name(raw) is not None)


@pytest.mark.parametrize("run", [*range(6), *range(60, 70), 100_001])
def test_however_many_backslashes_are_before_a_quote(run: int) -> None:
    raw = b'{"a":"%s","b":"x\\"","c":1}' % (b"\\\\" * run)
    assert not repeats(raw)
    assert repeats(raw.replace(b'"c":1', b'"c":1,"c":2'))
    assert not repeats(raw.replace(b'","b', b'\\",\\"b\\":\\"y","b'))
