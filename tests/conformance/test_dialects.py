"""What the readers make of real engines' answers. The numbers are those in the recordings."""

import msgspec
import pytest

from gateway.dialects import routes, sse, wire
from gateway.types import Ending, Usage
from recorded import load

BODIES = [
    # engine, exchange, prompt, completion, cached, finish reasons
    ("sglang", "chat", 15, 8, 0, ["length"]),
    ("sglang", "chat_n2", 15, 6, 14, ["length"] * 2),
    ("sglang", "chat_prefix_2_cached", 309, 8, 308, ["length"]),
    ("sglang", "completions", 4, 6, 0, ["length"]),
    ("sglang", "completions_batch", 5, 6, 0, ["length"] * 2),
    ("sglang", "completions_tokens", 2, 3, 0, ["length"]),
    ("sglang", "completions_best_of_echo", 2, 2, 0, ["length"]),
    ("sglang", "messages", 15, 6, 14, ["max_tokens"]),
    ("sglang", "messages_count", 15, None, None, []),
    ("sglang", "responses", 9, 4, 3, ["max_output_tokens"]),
    ("sglang", "generate", 4, 4, 3, ["length"]),
    ("vllm", "chat", 15, 8, 0, ["length"]),
    ("vllm", "chat_n2", 15, 6, 0, ["length"] * 2),
    ("vllm", "chat_prefix_2_cached", 309, 8, 288, ["length"]),
    ("vllm", "completions", 4, 6, 0, ["length"]),
    ("vllm", "completions_batch", 5, 6, 0, ["length"] * 2),
    ("vllm", "completions_tokens", 2, 3, 0, ["length"]),
    ("vllm", "messages", 15, 6, 0, ["max_tokens"]),
    ("vllm", "messages_count", 15, None, None, []),
    ("vllm", "responses", 9, 6, 0, ["max_output_tokens"]),
    ("llamacpp", "chat", 15, 8, 0, ["length"]),
    ("llamacpp", "chat_n2", 15, 3, 14, ["length"] * 2),  # the first choice's tokens only
    ("llamacpp", "chat_again_cached", 15, 8, 14, ["length"]),
    ("llamacpp", "completions", 4, 6, 0, ["length"]),
    ("llamacpp", "completions_batch", 3, 3, 0, ["length"] * 2),  # the first prompt's only
    ("llamacpp", "messages", 15, 6, 14, ["max_tokens"]),
    ("llamacpp", "count_tokens_anthropic", 15, None, None, []),
    ("llamacpp", "responses", 9, 6, 3, ["completed"]),
    ("transformers-serve", "chat", 15, 4, None, ["length"]),
    ("transformers-serve", "completions", 4, 3, None, ["length"]),
]
STREAMS = [
    # ... and the number of events
    ("sglang", "chat_stream", 15, 3, 14, ["length"], 7),
    ("sglang", "chat_stream_continuous", 15, 3, 14, ["length"], 7),
    ("sglang", "completions_stream", 1, 3, 0, ["length"], 5),
    ("sglang", "messages_stream", 15, 3, 14, ["max_tokens"], 8),
    ("sglang", "responses_stream", 9, 1, 8, ["max_output_tokens"], 9),
    ("sglang", "generate_stream", 4, 3, 3, ["length"], 4),
    ("vllm", "chat_stream", 15, 3, 0, ["length"], 6),
    ("vllm", "chat_stream_continuous", 15, 3, 0, ["length"], 6),
    ("vllm", "completions_stream", 1, 3, 0, ["length"], 5),
    ("vllm", "messages_stream", 15, 3, 0, ["max_tokens"], 8),
    ("vllm", "responses_stream", 9, 3, 0, ["max_output_tokens"], 10),
    ("llamacpp", "chat_stream", 15, 4, 14, ["length"], 8),
    ("llamacpp", "completions_stream", 1, 3, 0, ["length"], 5),
    ("llamacpp", "messages_stream", 15, 3, 14, ["max_tokens"], 7),
    ("llamacpp", "responses_stream", 9, 3, 8, ["completed"], 10),
    ("transformers-serve", "chat_stream", 15, 3, None, ["length"], 5),  # no [DONE]
    ("transformers-serve", "responses", 9, 3, 0, ["completed"], 11),  # a stream nobody asked for
]
UNASKED = [
    ("sglang", "chat_stream"),
    ("sglang", "chat_stream_continuous"),
    ("sglang", "completions_stream"),
    ("vllm", "chat_stream"),
    ("vllm", "chat_stream_continuous"),
    ("vllm", "completions_stream"),
    ("llamacpp", "chat_stream"),
    ("llamacpp", "completions_stream"),
    ("transformers-serve", "chat_stream"),
]
NO_USAGE = [("sglang", "chat_stream_nousage"), ("vllm", "chat_stream_nousage")]


def read(exchange, request=None, size=None):
    """The answer through its reader in chunks of ``size`` bytes: what came out, and the verdict."""
    dialect = routes.match(exchange.method, exchange.path)
    parsed = dialect.parse(exchange.path, request or exchange.request)
    reader = dialect.reader(parsed, status=exchange.status, content_type=exchange.content_type)
    size = size or len(exchange.body) or 1
    chunks = [exchange.body[at : at + size] for at in range(0, len(exchange.body), size)]
    out = b"".join([reader.receive(chunk) for chunk in chunks]) + reader.end()
    return out, reader.result()


def without_wish_for_usage(exchange):
    return wire.apply_edits(exchange.request, {"stream_options": None})


def events_of(body):
    data = [sse.data_of(event.raw) for event in sse.Splitter().receive(body)]
    return [msgspec.json.decode(each) for each in data if each != b"[DONE]"]


@pytest.mark.parametrize(("engine", "name", "prompt", "completion", "cached", "finish"), BODIES)
def test_whole_answers(engine, name, prompt, completion, cached, finish):
    exchange = load(engine, name)
    out, seen = read(exchange)
    assert out == exchange.body
    assert seen.usage == Usage(prompt, completion, cached)
    assert list(seen.finish_reasons) == finish
    assert (seen.ending, seen.scanned) == (Ending.COMPLETE, True)


@pytest.mark.parametrize(
    ("engine", "name", "prompt", "completion", "cached", "finish", "count"), STREAMS
)
def test_streams_pass_unchanged_where_usage_was_asked_for(
    engine, name, prompt, completion, cached, finish, count
):
    exchange = load(engine, name)
    out, seen = read(exchange)
    assert out == exchange.body
    assert seen.usage == Usage(prompt, completion, cached)
    assert list(seen.finish_reasons) == finish
    assert (seen.ending, seen.scanned, seen.events) == (Ending.COMPLETE, True, count)
    assert seen.bytes_in == len(exchange.body)
    assert seen.response_id is not None


@pytest.mark.parametrize(("engine", "name"), [row[:2] for row in STREAMS])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 255])
def test_the_cut_between_chunks_changes_nothing(engine, name, size):
    exchange = load(engine, name)
    assert read(exchange, size=size) == read(exchange)


@pytest.mark.parametrize(("engine", "name"), UNASKED)
@pytest.mark.parametrize("size", [None, 1, 5])
def test_forced_usage_is_metered_and_taken_out(engine, name, size):
    exchange = load(engine, name)
    asked, seen_asked = read(exchange)
    out, seen = read(exchange, without_wish_for_usage(exchange), size)
    assert seen == seen_asked
    expected = []
    for event in events_of(asked):
        if event["choices"]:
            if event.get("usage") is not None:
                del event["usage"]
            expected.append(event)
    assert events_of(out) == expected
    assert out.endswith(asked[-14:] if asked.endswith(b"[DONE]\n\n") else b"}\n\n")


@pytest.mark.parametrize(("engine", "name"), NO_USAGE)
def test_without_forced_usage_nothing_is_taken_out(engine, name):
    exchange = load(engine, name)
    out, seen = read(exchange)
    assert out == exchange.body
    assert (seen.usage, seen.ending) == (None, Ending.COMPLETE)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_forced_and_stripped_looks_like_never_asked(engine):
    forced = load(engine, "chat_stream")
    out, _ = read(forced, without_wish_for_usage(forced))
    never = load(engine, "chat_stream_nousage").body

    def shape(body):  # vLLM puts its fingerprint on whichever event is the last
        return [
            (event.keys() - {"system_fingerprint"}, [c["delta"].keys() for c in event["choices"]])
            for event in events_of(body)
        ]

    assert shape(out) == shape(never)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("sglang", "generate_too_long"),
        ("sglang", "chat_too_long_stream"),
        ("vllm", "chat_too_long_stream"),
        ("llamacpp", "chat_too_long_stream"),
        ("transformers-serve", "completions_batch"),
    ],
)
def test_an_engines_refusal_passes_whole_and_is_no_answer(engine, name):
    exchange = load(engine, name)
    body = b'{"model":"m","messages":[],"prompt":"p","text":"t","stream":true}'
    out, seen = read(exchange, body)
    assert out == exchange.body
    assert (seen.ending, seen.usage) == (Ending.UPSTREAM_ERROR, None)


@pytest.mark.parametrize(("engine", "name"), [row[:2] for row in STREAMS])
def test_a_stream_cut_anywhere_is_never_complete_before_its_last_event(engine, name):
    exchange = load(engine, name)
    dialect = routes.match(exchange.method, exchange.path)
    request = dialect.parse(exchange.path, exchange.request)
    blocks = exchange.body.split(b"\n\n")
    [last] = [block for block in blocks if block][-1:]
    last_starts = exchange.body.rindex(last)
    for cut in range(0, last_starts, 11):
        reader = dialect.reader(request, status=200, content_type=exchange.content_type)
        out = reader.receive(exchange.body[:cut])
        assert reader.result().ending is Ending.TRUNCATED
        assert exchange.body.startswith(out)
        assert out.endswith(b"\n\n") or not out
