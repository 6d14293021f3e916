"""Real engines' answers are whole ones, in every dialect; the same ones crippled are not."""

import re
from dataclasses import replace

import pytest

from conformance.test_dialects import BODIES, NO_USAGE, STREAMS, read
from gateway.core.binding import judge_binding
from gateway.core.completeness import judge_completeness
from gateway.dialects import routes
from gateway.types import Verdict
from recorded import load

GENERATED = [
    *((engine, name) for engine, name, *_ in BODIES if "count" not in name),
    *((engine, name) for engine, name, *_ in STREAMS),
    *NO_USAGE,
    ("sglang", "completions_prompt_logprobs"),
    ("vllm", "completions_prompt_logprobs"),
    ("vllm", "completions_best_of_echo"),
]
REASON = re.compile(rb'("(?:finish_reason|stop_reason|status)": ?)(?:"[a-z_]+"|\{[^}]*\})')


def verdict(exchange):
    dialect = routes.match(exchange.method, exchange.path)
    _, seen = read(exchange)
    return judge_completeness(dialect.parse(exchange.path, exchange.request), seen)


@pytest.mark.parametrize(("engine", "name"), GENERATED)
def test_every_recorded_answer_is_complete(engine, name):
    exchange = load(engine, name)
    result = verdict(exchange)
    assert (result.verdict, result.reason) == (Verdict.OK, "")


@pytest.mark.parametrize(("engine", "name"), [row[:2] for row in BODIES if "count" not in row[1]])
def test_whole_answers_are_seen_to_hold_output(engine, name):
    _, seen = read(load(engine, name))
    assert seen.spoke


@pytest.mark.parametrize(("engine", "name"), GENERATED)
def test_the_same_answer_without_its_finish_reason_is_not(engine, name):
    exchange = load(engine, name)
    body = REASON.sub(rb"\1null", exchange.body)
    assert body != exchange.body
    crippled = verdict(replace(exchange, body=body))
    # Some streams have no other end than their reason: without it they are cut, told elsewhere.
    cut = (engine, name) in {("transformers-serve", "chat_stream")} or "responses" in name
    assert crippled.reason in ("no_finish", "empty", *(["truncated"] if cut else []))
    assert crippled.suspect is (crippled.reason != "truncated")


@pytest.mark.parametrize("body", [b"", b"{", b"<html>"])
def test_a_success_that_is_no_json_is_none(body):
    exchange = load("vllm", "chat")
    result = verdict(replace(exchange, body=body))
    assert (result.reason, result.suspect) == ("unreadable" if body else "empty", True)


@pytest.mark.parametrize(
    ("engine", "name", "told"),
    [
        ("vllm", "chat_request_id", "chatcmpl-abc"),  # of the header X-Request-Id: abc
        ("sglang", "chat_extra_key", "my-rid"),  # of the body's rid
    ],
)
def test_engines_give_the_id_back_that_they_got(engine, name, told):
    _, seen = read(load(engine, name))
    assert seen.response_id == told


@pytest.mark.parametrize(
    ("engine", "name"),
    [("sglang", "chat_request_id"), ("sglang", "messages"), ("llamacpp", "chat")],
)
def test_where_they_have_one_of_their_own_nothing_is_claimed(engine, name):
    _, seen = read(load(engine, name))
    result = judge_binding("req_" + "0" * 32, seen.response_id, expected=False)
    assert result.reason == "no_echo"
