"""What must hold of the dialects for all inputs."""

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects import routes, sse, wire
from gateway.errors import Kind, Rejection
from recorded import load

unhurried = settings(deadline=None)  # a busy machine is no counterexample

STREAMS = [
    ("sglang", "completions_stream"),
    ("sglang", "generate_stream"),
    ("vllm", "chat_stream"),
    ("vllm", "responses_stream"),
    ("llamacpp", "completions_stream"),
    ("llamacpp", "messages_stream"),
    ("transformers-serve", "chat_stream"),
]

# --- streams ----------------------------------------------------------------------------------

lines = st.sampled_from(
    [b"data: x", b"data:y", b"data", b": note", b"event: e", b"id: 1", b"", "data: 北🙂".encode()]
)
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
streams = st.builds(
    lambda bom, parts: bom + b"".join(line + end for line, end in parts),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.tuples(lines, ends), max_size=24),
)


def cut(body, places):
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


def split(chunks, **options):
    splitter = sse.Splitter(**options)
    events = [event for chunk in chunks for event in splitter.receive(chunk)]
    return events + splitter.end()


def data_by_the_standard(body):
    """The data of all events, line by line as the standard's processing model has it."""
    text = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found, data = [], []
    for line in text.split(b"\n"):
        if not line:
            found.append(b"\n".join(data))
            data = []
        elif line == b"data":
            data.append(b"")
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    return [each for each in [*found, b"\n".join(data)] if each]


@unhurried
@given(streams, st.lists(st.integers(0, 10_000), max_size=8))
def test_events_do_not_depend_on_chunks_and_keep_every_byte(body, places):
    whole = split([body])
    assert split(cut(body, places)) == whole
    assert split(cut(body, range(len(body)))) == whole
    assert b"".join(event.raw for event in whole) == body


@unhurried
@given(streams)
def test_data_is_what_the_standard_says(body):
    found = [sse.data_of(event.raw) for event in split([body])]
    assert [data for data in found if data] == data_by_the_standard(body)


@unhurried
@given(streams, st.lists(st.integers(0, 10_000), max_size=8), st.integers(1, 20))
def test_memory_is_bounded_and_oversized_events_keep_their_bytes(body, places, bound):
    splitter = sse.Splitter(bound)
    out = []
    for chunk in cut(body, places):
        out += splitter.receive(chunk)
        assert len(splitter._held) <= max(bound, 3)
    out += splitter.end()
    assert b"".join(event.raw for event in out) == body
    ordinary = {event.raw for event in out if not event.oversized}
    assert ordinary == {event.raw for event in split([body]) if len(event.raw) <= bound}


@unhurried
@given(streams, st.binary(min_size=1, max_size=20).filter(lambda data: b"\r" not in data))
def test_other_data_leaves_the_rest_of_an_event(body, data):
    for event in split([body]):
        if sse.data_of(event.raw):
            changed = sse.with_data(event.raw, data)
            assert sse.data_of(changed) == data
            assert sse.name_of(changed) == sse.name_of(event.raw)
            [again] = split([changed])
            assert again.raw == changed


@pytest.mark.parametrize(("engine", "name"), STREAMS)
@unhurried
@given(places=st.lists(st.integers(0, 10_000), max_size=6), asked=st.booleans())
def test_recorded_streams_in_any_chunks(engine, name, places, asked):
    exchange = load(engine, name)
    dialect = routes.match(exchange.method, exchange.path)
    raw = (
        exchange.request if asked else wire.apply_edits(exchange.request, {"stream_options": None})
    )
    request = dialect.parse(exchange.path, raw)

    def read(chunks):
        reader = dialect.reader(request, status=200, content_type="text/event-stream")
        out = b"".join([reader.receive(chunk) for chunk in chunks]) + reader.end()
        return out, reader.result()

    assert read(cut(exchange.body, places)) == read([exchange.body])


# --- edits ------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
names = st.sampled_from(["model", "usage", "x", 'q"\\', "ünï"])
bodies = st.dictionaries(names, values)
edits = st.dictionaries(names, st.none() | values.filter(lambda value: value is not None))


def raw_edits(wanted):
    return {name: None if value is None else wire.encode(value) for name, value in wanted.items()}


@unhurried
@given(bodies, edits, st.booleans())
def test_edits_set_and_drop_and_touch_nothing_else(body, wanted, spaced):
    raw = json.dumps(body, indent=1 if spaced else None, ensure_ascii=spaced).encode()
    edited = wire.apply_edits(raw, raw_edits(wanted))
    expected = {name: value for name, value in (body | wanted).items() if name not in wanted}
    expected |= {name: value for name, value in wanted.items() if value is not None}
    assert msgspec.json.decode(edited) == expected
    before = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    after = msgspec.json.decode(edited, type=dict[str, msgspec.Raw])
    for name in before.keys() - wanted.keys():
        assert bytes(after[name]) == bytes(before[name])
    assert wire.apply_edits(edited, raw_edits(wanted)) is edited


@unhurried
@given(bodies)
def test_no_edits_is_the_same_object(body):
    raw = json.dumps(body).encode()
    assert wire.apply_edits(raw, {}) is raw
    assert wire.apply_edits(raw, {"absent": None}) is raw


# --- requests ---------------------------------------------------------------------------------

FIELDS = [
    "model", "messages", "prompt", "input", "text", "input_ids", "stream", "stream_options", "n",
    "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens", "sampling_params",
    "suffix", "truncation", "add_special_tokens", "background",
]  # fmt: skip
anything = values | st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("path", [path for _, path in routes.ROUTES])
@unhurried
@given(body=st.dictionaries(st.sampled_from(FIELDS), anything, max_size=8))
def test_any_object_is_parsed_or_refused_with_the_field_at_fault(path, body):
    dialect = routes.ROUTES["POST", path]
    raw = json.dumps(body).encode()
    refusal, request = None, None
    try:
        request = dialect.parse(path, raw)
    except Rejection as caught:
        refusal = caught
    if refusal is not None:
        assert refusal.kind is Kind.MALFORMED
        assert refusal.param is not None
    if request is not None:
        assert request.raw is raw
        again = dialect.parse(path, wire.apply_edits(raw, dialect.edits(request)))
        assert again.wants_usage or not again.stream
        assert {**again.body, "stream_options": None} == {**body, "stream_options": None}
        assert dialect.edits(again) == {}


@pytest.mark.parametrize("path", [path for _, path in routes.ROUTES])
@unhurried
@given(raw=st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(path, raw):
    with pytest.raises(Rejection) as refusal:
        routes.ROUTES["POST", path].parse(path, b"{" + raw)
    assert refusal.value.kind is Kind.MALFORMED
