"""The strict getters: a value of the wrong kind is no value."""

import pytest

from engine_data import answered
from gateway.engines import reading
from gateway.engines.base import Answer, OracleCall, Probe
from gateway.engines.prometheus_text import series_of

NESTED = {"a": [{"b": 5, "c": "x", "d": True, "e": None}], "n": 0, "f": 7.0, "s": "7", "big": 2**41}


@pytest.mark.parametrize(
    ("path", "count"),
    [
        (("a", 0, "b"), 5),
        (("a", -1, "b"), 5),
        (("a", 1, "b"), None),
        (("a", "b"), None),
        (("a", 0, "d"), None),
        (("a", 0, "e", "x", 3), None),
        (("n",), None),
        (("f",), None),
        (("s",), None),
        (("big",), None),
        (("missing", "b"), None),
    ],
)
def test_counts(path, count):
    assert reading.count_at(NESTED, *path) == count


def test_texts_flags_and_lists():
    assert reading.text_at(NESTED, "a", 0, "c") == "x"
    assert reading.text_at(NESTED, "n") is None
    assert reading.text_at({"t": ""}, "t") is None
    assert reading.flag_at(NESTED, "a", 0, "d") is True
    assert reading.flag_at(NESTED, "n") is None
    assert reading.items_at(NESTED, "a") == tuple(NESTED["a"])
    assert reading.items_at("abc") == ()
    assert reading.scalar_at(NESTED, "a") is None


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("0", None), ("+1", None), ("²", None)])
def test_digits(text, number):
    assert reading.digits(text) == number


def test_below_never_reaches_zero():
    assert reading.below(8, 7) == 1
    assert reading.below(7, 7) is None
    assert reading.below(None, 1) is None


def test_fingerprints_are_short_stable_and_hide_their_parts():
    one = reading.fingerprint("--api-key s3cret", 1)
    assert one == reading.fingerprint("--api-key s3cret", 1)
    assert one != reading.fingerprint("--api-key s3cret", 2)
    assert reading.fingerprint("\ud800") != one
    assert len(one) == 16
    assert "s3cret" not in one


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (None, "no answer"),
        (Answer(0, b"TimeoutError"), "no answer"),
        (Answer(401, b""), "api_key"),
        (Answer(307, b""), "307"),
        (Answer(200, b"secret text"), "no JSON"),
        (Answer(200, b'{"secret":1}'), "missing"),
    ],
)
def test_trouble_is_named_without_quoting_the_worker(answer, word):
    answers = {} if answer is None else {reading.MODELS: answer}
    said = reading.trouble(answers, reading.MODELS)
    assert said.startswith("GET /v1/models: ")
    assert word in said
    assert "secret" not in said


def test_model_cards_take_the_smallest_length():
    cards = [{"id": "a", "max_model_len": 9}, {"id": "b", "max_model_len": 8}, 3, {"id": 4}]
    read = reading.model_cards(answered(v1__models={"data": cards}))
    assert (read.names, read.max_model_len) == (("a", "b"), 8)


@pytest.mark.parametrize(
    ("field", "body", "count"),
    [
        ("count", b'{"count":3}', 3),
        ("tokens", b'{"tokens":[1,2]}', 2),
        ("", b"[1,2,3]", 3),
        ("count", b'{"count":0}', 0),
        ("count", b'{"count":true}', None),
        ("count", b'{"count":-1}', None),
        ("count", b'{"count":"3"}', None),
        ("count", b"[1,2]", None),
        ("", b'{"count":3}', None),
        ("count", b"no", None),
    ],
)
def test_an_oracles_count(field, body, count):
    call = OracleCall(Probe("POST", "/tokenize", {}), field)
    assert call.count(Answer(200, body)) == count
    assert call.count(Answer(403, body)) is None


def page(text):
    return {reading.METRICS: Answer(200, text.encode())}


def test_series_of_one_metric_and_no_other():
    text = 'a_total 9\na{x="1"} 2\n# HELP a b\na{x="2",y="q\\"z"} 3.5\naa 7\nbroken{ 1\n'
    series = series_of(page(text), reading.METRICS, "a")
    assert [(dict(one.labels), one.value) for one in series] == [
        ({"x": "1"}, 2.0),
        ({"x": "2", "y": 'q"z'}, 3.5),
    ]


@pytest.mark.parametrize("line", ['a{x="1} 2', "a{ 1", "a b", 'a{x="1",x="2"} 1', 'a{"q"} 1'])
def test_one_broken_series_makes_the_metric_unreadable(line):
    assert series_of(page(f"a 1\n{line}\n"), reading.METRICS, "a") == ()
