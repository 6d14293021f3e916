"""Readers: endings, in-band errors, bounds, and what cannot be looked into."""

import json

import pytest

from gateway.dialects import answers, routes
from gateway.dialects.openai_common import ChoicesFold
from gateway.types import Ending, Usage

SSE = "text/event-stream"
STREAMED = {
    "/v1/chat/completions": {"model": "m", "messages": [], "stream": True},
    "/v1/completions": {"model": "m", "prompt": "p", "stream": True},
    "/v1/responses": {"model": "m", "input": "p", "stream": True},
    "/v1/messages": {"model": "m", "messages": [], "stream": True},
    "/generate": {"text": "p", "stream": True},
}
CHAT = "/v1/chat/completions"
DELTA = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def reader_of(path=CHAT, content_type=SSE, status=200, encoding="", **fields):
    dialect = routes.match("POST", path)
    request = dialect.parse(path, json.dumps(STREAMED[path] | fields).encode())
    return dialect.reader(
        request, status=status, content_type=content_type, content_encoding=encoding
    )


def read(body, **options):
    reader = reader_of(**options)
    out = reader.receive(body) + reader.end()
    return out, reader.result()


def asked(**fields):
    return {"stream_options": {"include_usage": True}, **fields}


# --- endings ----------------------------------------------------------------------------------


def test_row_4d_a_clean_end_before_the_terminal_event_is_truncated():
    out, seen = read(DELTA + DELTA)
    assert out == DELTA * 2
    assert seen.ending is Ending.TRUNCATED


def test_row_4e_a_finish_reason_and_a_clean_end_are_complete():
    assert read(DELTA + STOP)[1].ending is Ending.COMPLETE


def test_row_4f_a_finish_reason_alone_is_not_yet_complete():
    reader = reader_of()
    reader.receive(DELTA + STOP)
    assert reader.result().ending is Ending.TRUNCATED
    reader.receive(DONE)
    assert reader.result().ending is Ending.COMPLETE


def test_every_choice_must_finish():
    assert read(DELTA + STOP, n=2)[1].ending is Ending.TRUNCATED
    other = STOP.replace(b'"index":0', b'"index":1')
    assert read(DELTA + STOP + other, n=2)[1].finish_reasons == ("stop", "stop")
    assert read(DELTA + STOP + other, n=2)[1].ending is Ending.COMPLETE


def test_every_prompt_of_a_batch_must_finish():
    path = "/v1/completions"
    assert read(STOP, path=path, prompt=["a", "b"])[1].ending is Ending.TRUNCATED
    assert read(STOP + DONE, path=path, prompt=["a", "b"])[1].ending is Ending.COMPLETE


def test_a_last_event_that_was_cut_off_is_dropped_so_that_an_error_can_follow():
    reader = reader_of()
    assert reader.receive(DELTA + b'data: {"choices":[{"ind') == DELTA
    assert reader.end() == b""
    assert reader.result().ending is Ending.TRUNCATED


def test_a_last_event_that_lacks_only_its_blank_line_counts():
    out, seen = read(DELTA + STOP + b"data: [DONE]\n")
    assert out == DELTA + STOP + b"data: [DONE]\n"
    assert seen.ending is Ending.COMPLETE


def test_the_words_of_an_answer_end_nothing():
    tricky = DELTA.replace(b'"a"', rb'"[DONE] \"finish_reason\":\"stop\" \"error\" data: [DONE]\n"')
    out, seen = read(tricky * 2)
    assert out == tricky * 2
    assert (seen.ending, seen.finish_reasons, seen.events) == (Ending.TRUNCATED, (), 2)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_done_ends_only_where_the_dialect_has_it(path):
    assert read(DONE, path=path)[1].ending is Ending.TRUNCATED


# --- errors in a 200 (row 7) ------------------------------------------------------------------


@pytest.mark.parametrize("path", STREAMED)
@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"q","code":503}}\n\n',
        b'data: {"error": "q"}\n\n',
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
        b"event:error\ndata: out of memory\n\n",
        b'data: {"type": "error", "message": "q"}\n\n',
        b'data: {"object":"error","message":"q"}\n\n',
    ],
)
@pytest.mark.parametrize("before", [b"", DELTA])
def test_row_7_errors_in_the_stream(path, event, before):
    out, seen = read(before + event + DONE, path=path)
    assert out == before + event + DONE
    assert seen.ending is Ending.UPSTREAM_ERROR


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
def test_row_7_a_response_that_failed(kind):
    event = f'event: response.{kind}\ndata: {{"type":"response.{kind}","response":{{}}}}\n\n'
    assert read(event.encode(), path="/v1/responses")[1].ending is Ending.UPSTREAM_ERROR
    body = f'{{"status":"{kind}"}}'.encode()
    seen = read(body, path="/v1/responses", content_type="application/json")[1]
    assert seen.ending is Ending.UPSTREAM_ERROR


def test_row_7_an_aborted_generation():
    meta = b'{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"too long"}}}'
    assert read(b"data: " + meta + b"\n\n" + DONE, path="/generate")[1].ending is (
        Ending.UPSTREAM_ERROR
    )


@pytest.mark.parametrize("path", STREAMED)
def test_an_error_object_as_a_whole_answer(path):
    body = b'{"error":{"message":"q"}}'
    out, seen = read(body, path=path, content_type="application/json")
    assert (out, seen.ending) == (body, Ending.UPSTREAM_ERROR)


def test_null_errors_are_none():
    body = b'{"error":null,"choices":[{"finish_reason":"stop"}]}'
    assert read(body, content_type="application/json")[1].ending is Ending.COMPLETE


# --- odd chunks (row 5) -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunk",
    [
        b'{"choices":[],"usage":{"prompt_tokens":5}}',
        b'{"usage":{"prompt_tokens":5}}',
        b'{"choices":null,"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}',
        b'{"choices":[null],"usage":{"prompt_tokens":5,"completion_tokens":null}}',
        b'{"choices":{},"usage":{"prompt_tokens":5,"completion_tokens":-1}}',
    ],
)
def test_row_5_usage_is_taken_from_the_last_that_is_not_null(chunk):
    body = b"".join(
        b"data: " + each + b"\n\n"
        for each in (b"{}", b'{"usage":null}', chunk, b'{"usage":null}', b'{"choices":[]}', b"7")
    )
    out, seen = read(body + DONE, **asked())
    assert out == body + DONE
    assert seen.usage == Usage(prompt_tokens=5)
    assert seen.ending is Ending.COMPLETE


def test_row_3_comments_and_keep_alives_are_no_events():
    body = b": PROCESSING\n\n" + b'id: 1\nevent: x\nretry: 5\ndata:{"choices":[]}\n\n' + b"\n\n"
    out, seen = read(body)
    assert (out, seen.events) == (body, 1)
    assert read(b": ping\n\n" * 3 + DELTA)[1].events == 1


@pytest.mark.parametrize("bad", ["5", 5.0, True, -5, None, [5]])
def test_counts_that_are_no_counts_are_not_reported(bad):
    body = json.dumps({"choices": [], "usage": {"prompt_tokens": bad}}).encode()
    assert read(body, content_type="application/json")[1].usage == Usage()


# --- usage taken out --------------------------------------------------------------------------


def test_only_the_usage_member_goes_where_a_choice_comes_with_it():
    event = b'id: 7\ndata: {"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":5},"x":1.50}\n\n'  # noqa: E501
    out, seen = read(event)
    assert out == (b'id: 7\ndata: {"choices":[{"index":0,"finish_reason":"stop"}],"x":1.50}\n\n')
    assert seen.usage == Usage(prompt_tokens=5)


def test_a_null_usage_stays():
    body = DELTA.replace(b'"choices"', b'"usage":null,"choices"') + DONE
    assert read(body)[0] == body


def test_usage_beside_nan_stays_rather_than_break_the_event():
    event = b'data: {"choices":[{"logprobs":NaN}],"usage":{"prompt_tokens":5}}\n\n'
    out, seen = read(event + DONE)
    assert out == event + DONE
    assert seen.usage == Usage(prompt_tokens=5)


def test_usage_over_several_data_lines_is_taken_out():
    event = b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":5}}\n\n'
    assert read(DELTA + event + DONE)[0] == DELTA + DONE


# --- what is not looked into ------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "text/plain"},
        {"content_type": ""},
        {"content_type": "application/x-ndjson"},
        {"content_type": SSE, "encoding": "gzip"},
        {"content_type": "application/json", "encoding": "br, gzip"},
    ],
)
def test_what_cannot_be_read_passes_at_once_and_says_so(headers):
    reader = reader_of(**headers)
    assert reader.receive(b"anything") == b"anything"
    assert reader.result().ending is Ending.TRUNCATED
    assert reader.end() == b""
    seen = reader.result()
    assert (seen.ending, seen.scanned, seen.bytes_in) == (Ending.COMPLETE, False, 8)


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_identity_is_no_encoding(encoding):
    assert read(DELTA + DONE, encoding=encoding)[1].scanned


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_error_statuses_pass_whole_as_errors(status):
    out, seen = read(b"<html>", status=status, content_type="text/html")
    assert (out, seen.ending) == (b"<html>", Ending.UPSTREAM_ERROR)


@pytest.mark.parametrize("body", [b"", b'{"choices":[', b"Internal error", b'{"a":1}x'])
def test_a_json_answer_that_is_not_whole_is_truncated(body):
    out, seen = read(body, content_type="application/json; charset=utf-8")
    assert (out, seen.ending, seen.scanned) == (body, Ending.TRUNCATED, True)


def test_a_json_answer_is_held_until_its_end():
    reader = reader_of(content_type="application/json")
    assert reader.receive(b'{"choices":[]') == b""
    assert reader.receive(b"}") == b""
    assert reader.result().ending is Ending.TRUNCATED
    assert reader.end() == b'{"choices":[]}'
    assert reader.result().ending is Ending.COMPLETE


def test_a_json_answer_beyond_the_bound_passes_unscanned():
    reader = answers.JsonReader(ChoicesFold(1, strip=False), max_body=10)
    assert reader.receive(b'{"a":1') == b""
    assert reader.receive(b',"usage":') == b'{"a":1,"usage":'
    assert reader.receive(b"{}}") == b"{}}"
    assert reader.end() == b""
    seen = reader.result()
    assert (seen.scanned, seen.usage, seen.ending) == (False, None, Ending.COMPLETE)


def test_an_oversized_event_passes_unscanned_and_the_stream_goes_on():
    reader = answers.StreamReader(ChoicesFold(1, strip=True), max_event=100)
    big = b'data: {"usage":{},"x":"' + b"x" * 100 + b'"}\n\n'
    assert reader.receive(big + DONE) == big + DONE
    seen = reader.result()
    assert (seen.scanned, seen.ending) == (False, Ending.COMPLETE)


@pytest.mark.parametrize(("last", "ending"), [(b"\n\n", "complete"), (b"", "truncated")])
def test_a_stream_whose_last_event_is_oversized_was_whole_if_that_event_was(last, ending):
    reader = answers.StreamReader(ChoicesFold(1, strip=True), max_event=100)
    reader.receive(DELTA + b"data: " + b"x" * 100 + last)
    assert reader.result().ending is Ending.TRUNCATED
    reader.end()
    assert (reader.result().ending, reader.result().scanned) == (ending, False)


def test_an_oversized_event_in_the_middle_excuses_no_cut():
    reader = answers.StreamReader(ChoicesFold(1, strip=True), max_event=100)
    reader.receive(b"data: " + b"x" * 100 + b"\n\n" + DELTA)
    reader.end()
    assert reader.result().ending is Ending.TRUNCATED


# --- what is known before the end ---------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_complete_is_told_as_soon_as_the_result_would_say_so(size):
    reader, body = reader_of(), DELTA + STOP + DONE
    for at in range(0, len(body), size):
        reader.receive(body[at : at + size])
        assert reader.complete is (reader.result().ending is Ending.COMPLETE)
    assert reader.complete


def test_a_stream_that_failed_is_never_complete():
    reader = reader_of()
    reader.receive(b'data: {"error":{"message":"x"}}\n\n' + DONE)
    assert not reader.complete


def test_the_id_is_known_with_the_first_event():
    reader = reader_of()
    reader.receive(DELTA[:-1])
    assert reader.new_ids == ()
    reader.receive(DELTA[-1:])
    assert reader.new_ids == ("1",)
    reader.receive(DELTA)
    assert reader.new_ids == ()


def test_every_change_of_the_id_is_told_once():
    other = DELTA.replace(b'"id":"1"', b'"id": "2"')
    without, empty = DELTA.replace(b'"id":"1",', b""), DELTA.replace(b'"1"', b'""')
    reader = reader_of()
    reader.receive(DELTA + DELTA + other + without + empty + other + DELTA)
    assert reader.new_ids == ("1", "2", "1")
    quoting = DELTA.replace(b'"a"', rb'"{\"id\":\"2\"}"')
    reader.receive(quoting + DELTA)
    assert reader.new_ids == ()
    reader.receive(STOP + DONE + other[:-2])
    assert reader.new_ids == ()
    reader.end()
    assert reader.new_ids == ("2",)


@pytest.mark.parametrize("spelt", [b'"id" : "2"', b'"id":\t"2"', b'"id":"\\u0032"'])
def test_an_id_that_is_written_oddly_is_read_all_the_same(spelt):
    odd = DELTA.replace(b'"id":"1"', spelt)
    reader = reader_of()
    reader.receive(odd + odd + DELTA)
    assert reader.new_ids == ("2", "1")


def test_what_told_the_failure_is_kept_up_to_a_bound():
    first, second = b'{"error":{"message":"first"}}', b'{"error":{"message":"second"}}'
    reader = reader_of()
    reader.receive(DELTA + b"data: " + first + b"\n\ndata: " + second + b"\n\n")
    assert reader.failure == first
    reader = reader_of(content_type="application/json")
    assert reader.receive(first) + reader.end() == reader.failure == first
    reader = reader_of(status=400)
    reader.receive(first[:9])
    reader.receive(first[9:])
    assert reader.failure == first
    for content_type in (SSE, "application/json"):
        reader = reader_of(content_type=content_type)
        reader.receive(b'data: {"error":"'[0 if content_type == SSE else 6 :])
        reader.receive(b"x" * answers.MAX_FAILURE_BYTES + b'"}\n\n')
        reader.end()
        assert reader.failure == b""
        assert reader.result().ending is Ending.UPSTREAM_ERROR


@pytest.mark.parametrize(
    ("path", "answer", "spoke"),
    [
        (CHAT, {"choices": [{"message": {"role": "assistant", "content": ""}}]}, False),
        (CHAT, {"choices": [{"message": {"content": "a"}}]}, True),
        (CHAT, {"choices": [{"message": {"content": None, "reasoning_content": "a"}}]}, True),
        (CHAT, {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}, True),
        (CHAT, {"choices": []}, False),
        ("/v1/completions", {"choices": [{"text": ""}]}, False),
        ("/v1/completions", {"choices": [{"text": "a"}]}, True),
        ("/v1/messages", {"content": []}, False),
        ("/v1/messages", {"content": [{"type": "tool_use"}]}, True),
        ("/v1/responses", {"status": "completed", "output": []}, False),
        ("/v1/responses", {"status": "completed", "output": [{}]}, True),
        ("/generate", {"text": "", "meta_info": {}}, False),
        ("/generate", {"text": "a", "meta_info": {}}, True),
    ],
)
def test_an_answer_that_holds_output_is_told_from_one_that_does_not(path, answer, spoke):
    body = json.dumps(answer).encode()
    assert read(body, path=path, content_type="application/json")[1].spoke is spoke


def test_a_stream_that_only_frames_an_answer_holds_no_output():
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    assert not read(role + STOP + DONE)[1].spoke
    assert read(role + DELTA + STOP + DONE)[1].spoke


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_an_id_with_half_of_a_surrogate_pair_breaks_nothing(path):
    odd = DELTA.replace(b'"id":"1"', b'"id":"\\ud800"')
    out, seen = read(odd + odd + STOP + DONE, path=path)
    assert out == odd + odd + STOP + DONE
    assert seen.ending is Ending.COMPLETE
