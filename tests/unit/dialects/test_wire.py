"""Strict reading of bodies and fields, and edits by member."""

import msgspec
import pytest

from gateway.dialects import wire
from gateway.errors import Kind, Rejection


def refusal_of(call, *args, **options):
    with pytest.raises(Rejection) as caught:
        call(*args, **options)
    assert caught.value.kind is Kind.MALFORMED
    return caught.value


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"[1]", "JSON object"),
        (b'"text"', "JSON object"),
        (b"null", "JSON object"),
        (b'{"a":1', "not valid JSON"),
        (b'{"a":1}x', "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":Infinity}', "not valid JSON"),
        (b'{"a":"\x00"}', "not valid JSON"),
        (b'\xef\xbb\xbf{"a":1}', "byte order mark"),
        ('{"a":1}'.encode("utf-16"), "not valid JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
    ],
)
def test_what_is_no_json_object_is_refused(raw, words):
    assert words in refusal_of(wire.decode_object, raw).message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"1e400", "out of range"),
        (b"1" * 5000, "out of range"),
        (b'"\xff"', "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'["fine", {"deep": "\xc3("}]', "UTF-8"),
        (rb'"\ud800"', "surrogate"),
        (rb'"\udc00"', "surrogate"),
        (rb'"\ud800\u0041"', "surrogate"),
        (rb'"\ud83d\ude00 and \uDBFF"', "surrogate"),
        (rb'[{"text": "\\\udfff"}]', "surrogate"),
    ],
)
def test_row_19_the_field_at_fault_is_named(value, words):
    refusal = refusal_of(wire.decode_object, b'{"model":"m","wrong":' + value + b',"z":1}')
    assert refusal.param == "wrong"
    assert words in refusal.message


@pytest.mark.parametrize(
    "raw", [rb'{"a":"\ud83d\ude00"}', rb'{"a":"\\ud800"}', rb'{"a":"\\\\ud800 \u00fc"}']
)
def test_pairs_and_escaped_backslashes_are_no_lone_surrogates(raw):
    assert set(wire.decode_object(raw)) == {"a"}


def test_an_escaped_backslash_is_not_blamed_for_another_field_s_fault():
    refusal = refusal_of(wire.decode_object, rb'{"a":"\\ud800 \\\\udc00","b":1e400}')
    assert refusal.param == "b"
    assert "surrogate" not in refusal.message


def test_a_lone_surrogate_in_a_name_and_a_monstrous_name_are_not_repeated():
    assert refusal_of(wire.decode_object, rb'{"\ud800":1}').param is None
    refusal = refusal_of(wire.decode_object, b'{"' + b"n" * 1000 + b'":1e999}')
    assert refusal.param is None
    assert len(refusal.message) < 200


def test_large_bad_bodies_are_refused_without_a_search():
    raw = b'{"a":"' + b"\\n" * 600_000 + b'","b":1e400}'
    assert refusal_of(wire.decode_object, raw).param is None


def test_of_duplicates_an_edit_leaves_the_last():
    assert wire.apply_edits(b'{"a":1,"a":2}', {"b": wire.encode(3)}) == b'{"a":2,"b":3}'


@pytest.mark.parametrize("value", [-1, True, "10", 1e3, 10**30, [], {}])
def test_row_63_odd_numbers_are_refused(value):
    refusal = refusal_of(wire.whole_number, {"max_tokens": value}, "max_tokens")
    assert refusal.param == "max_tokens"


@pytest.mark.parametrize(("value", "read"), [(None, None), (0, 0), (7, 7), (2**63 - 1, 2**63 - 1)])
def test_row_63_null_is_absent_and_zero_is_for_the_engine(value, read):
    assert wire.whole_number({"max_tokens": value}, "max_tokens") == read
    assert wire.whole_number({}, "max_tokens") is None


def test_the_path_to_a_nested_field_is_named():
    refusal = refusal_of(wire.whole_number, {"n": 0}, "n", least=1, prefix="sampling_params.")
    assert refusal.param == "sampling_params.n"
    assert "from 1 to" in refusal.message
    assert refusal_of(wire.flag, {"x": 1}, "x", "outer.").param == "outer.x"
    assert refusal_of(wire.objects, {"messages": [{}, 1]}, "messages").param == "messages[1]"


@pytest.mark.parametrize("value", [None, "", 1, ["m"], True])
def test_a_name_is_a_non_empty_string(value):
    assert refusal_of(wire.required_name, {"model": value}, "model").param == "model"


def test_edits_keep_bytes_and_order():
    raw = b' { "z" : 1.50 , "model":"m","deep":{"a": [1,  2]},"\\u0061":"\\u00fc" } '
    assert wire.apply_edits(raw, {"model": None, "new": wire.encode({"k": None})}) == (
        b'{"z":1.50,"deep":{"a": [1,  2]},"a":"\\u00fc","new":{"k":null}}'
    )
    assert wire.apply_edits(b'{"a":1}', {"a": None}) == b"{}"


def test_new_members_go_in_front_of_known_ones_unparsed():
    raw = b' \n{ "c" :1, "a":2 , "b":[ {}]}'
    keys = {"a": 2, "b": []}.keys()
    edits = {"salt": wire.encode("x{"), "gone": None, "n": wire.encode(1)}
    edited = wire.apply_edits(raw, edits, keys)
    assert edited == b' \n{"salt":"x{","n":1, "c" :1, "a":2 , "b":[ {}]}'
    assert wire.decode_object(edited) == {"salt": "x{", "n": 1, "c": 1, "a": 2, "b": [{}]}
    assert wire.apply_edits(raw, {"gone": None}, keys) is raw
    assert wire.apply_edits(raw, {"b": None, "n": wire.encode(1)}, keys) == b'{"c":1,"a":2,"n":1}'


def test_what_is_behind_new_members_is_not_copied():
    raw = b'{"a":"' + b"x" * 1000 + b'"}'
    front, rest = wire.edited(raw, {"n": wire.encode(1)}, {"a": ""}.keys())
    assert bytes(front) == b'{"n":1,'
    assert rest.obj is raw
    assert bytes(rest) == raw[1:]
    assert wire.edited(raw, {"gone": None}, {"a": ""}.keys()) == (raw,)


def test_an_edit_that_changes_nothing_returns_the_same_object():
    raw = b'{"a" : 1}'
    assert wire.apply_edits(raw, {"a": msgspec.Raw(b"1"), "b": None}) is raw


def test_lenient_reading_takes_only_what_was_asked_for():
    assert wire.decode_lenient(b'{"a":1,"b":[1e999],"c":"x"}', ("a", "c", "d")) == {
        "a": 1,
        "c": "x",
    }
    assert wire.decode_lenient(b'{"a":1,"b":NaN}', ("a",))["a"] == 1
    assert wire.decode_lenient(b'[{"a":1}]', ("a",)) == [{"a": 1}]
    for broken in (b"", b'{"a":1', b"<html>", b"\xff", b"[" * 100_000):
        assert wire.decode_lenient(broken, ("a",)) is None


@pytest.mark.parametrize(
    ("path", "edited"),
    [
        ((), b"0"),
        (("a",), b'{"a":0,"b":[ 1 ,{"c":2.50}]}'),
        (("b", 0), b'{"a":"\\u0041","b":[0,{"c":2.50}]}'),
        (("b", 1, "c"), b'{"a":"\\u0041","b":[1,{"c":0}]}'),
    ],
)
def test_a_value_deep_inside_is_edited_alone(path, edited):
    raw = b'{ "a":"\\u0041" , "b":[ 1 ,{"c":2.50}]}'

    assert bytes(wire.edit_at(raw, path, lambda _: wire.encode(0))) == edited


@pytest.mark.parametrize(
    ("raw", "path", "error"),
    [
        (b"{", ("a",), msgspec.DecodeError),
        (b'{"a":1}', ("b",), KeyError),
        (b"[1]", (1,), IndexError),
        (b"[1]", ("a",), msgspec.DecodeError),
    ],
)
def test_a_place_that_is_not_there_cannot_be_edited(raw, path, error):
    with pytest.raises(error):
        wire.edit_at(raw, path, lambda raw: raw)


@pytest.mark.parametrize(
    ("raw", "value"),
    [(b'{"a":[NaN]}', True), (b'"\\ud800"', "\ud800"), (b"[1,", None), (b"\xff", None)],
)
def test_an_engines_json_is_read_whole_and_leniently(raw, value):
    found = wire.decode_any(raw)

    assert bool(found["a"]) if value is True else found == value
