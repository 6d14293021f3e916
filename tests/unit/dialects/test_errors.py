"""Every refusal in every dialect's shape."""

import json
import re

import msgspec
import pytest

from gateway.dialects import routes, sse
from gateway.errors import Kind, PromptTooLong, Rejection

SUBJECTS = {
    "openai_chat": "messages",
    "openai_completions": "prompt",
    "openai_responses": "input",
    "openai_embeddings": "input",
    "sglang_generate": "prompt",
}
BY_NAME = {dialect.name: dialect for dialect in routes.DIALECTS}
OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
    504: "server_error",
}
ANTHROPIC_TYPES = OPENAI_TYPES | {
    413: "request_too_large",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def too_long(by="engine", at_least=False):
    numbers = PromptTooLong(301_544, 284_921, by, at_least)
    return Rejection(Kind.PROMPT_TOO_LONG, "internal wording", too_long=numbers)


def error_of(name, rejection):
    answer = BY_NAME[name].error(rejection)
    assert answer.status == rejection.kind.status
    assert answer.content_type == "application/json"
    return json.loads(answer.body)["error"]


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.WITHHELD])
def test_openai_shapes(name, kind):
    error = error_of(name, Rejection(kind, "why", param="stream"))
    assert error == {
        "message": "why",
        "type": OPENAI_TYPES[kind.status],
        "param": "stream",
        "code": kind.code,
    }


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.WITHHELD])
def test_anthropic_shape(kind):
    answer = BY_NAME["anthropic_messages"].error(Rejection(kind, "why"))
    code = {"code": kind.code} if kind.status >= 500 else {}
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": ANTHROPIC_TYPES[kind.status], "message": "why"} | code,
    }


def test_anthropic_names_the_field_in_the_message():
    error = error_of("anthropic_messages", Rejection(Kind.MALFORMED, "No.", param="stream"))
    assert error["message"] == "stream: No."
    error = error_of("anthropic_messages", Rejection(Kind.MALFORMED, "stream? No.", param="stream"))
    assert error["message"] == "stream? No."


@pytest.mark.parametrize("name", SUBJECTS)
def test_withheld_is_exactly_this(name):
    assert error_of(name, Rejection(Kind.WITHHELD, "why", incident="i-1")) == {
        "message": "why",
        "type": "upstream_integrity",
        "code": "response_withheld",
        "incident": "i-1",
    }


def test_withheld_keeps_its_members_in_anthropic_s_shape():
    error = error_of("anthropic_messages", Rejection(Kind.WITHHELD, "why", incident="i-1"))
    assert (error["type"], error["code"]) == ("upstream_integrity", "response_withheld")
    assert (error["message"], error["incident"]) == ("why", "i-1")


@pytest.mark.parametrize(("name", "subject"), SUBJECTS.items())
def test_openai_too_long(name, subject):
    assert error_of(name, too_long()) == {
        "message": "This model's maximum context length is 284921 tokens. However, your"
        f" {subject} resulted in 301544 tokens. Please reduce the length of the {subject}."
        " The limit is set by the engine's KV pool.",
        "type": "invalid_request_error",
        "param": subject,
        "code": "context_length_exceeded",
    }


@pytest.mark.parametrize("name", SUBJECTS)
def test_openai_too_long_says_where_counting_stopped_and_whose_limit(name):
    message = error_of(name, too_long("tenant policy", at_least=True))["message"]
    assert re.search(r"maximum context length is (\d+) tokens", message)[1] == "284921"
    assert re.search(r"resulted in (\d+) tokens or more\.", message)[1] == "301544"
    assert "tenant policy" in message
    assert "engine" not in message


@pytest.mark.parametrize(
    ("by", "at_least", "added"),
    [
        ("engine", False, ""),
        ("engine", True, ""),
        ("tenant policy", False, " (the maximum is set by the tenant policy)"),
        ("tenant policy", True, " (the maximum is set by the tenant policy)"),
    ],
)
def test_anthropic_too_long(by, at_least, added):
    assert error_of("anthropic_messages", too_long(by, at_least)) == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 301544 tokens > 284921 maximum" + added,
    }


@pytest.mark.parametrize("dialect", routes.DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("kind", list(Kind))
def test_in_a_stream_it_is_one_event_and_no_terminator(dialect, kind):
    raw = dialect.stream_error(Rejection(kind, 'line one\nline "two"', incident="i-1"))
    [event] = sse.Splitter().receive(raw)
    assert event.raw == raw
    body = msgspec.json.decode(sse.data_of(raw))
    assert body["error"]["message"] == 'line one\nline "two"'
    assert b"[DONE]" not in raw
    named = dialect.name in ("anthropic_messages", "openai_responses")
    assert sse.name_of(raw) == (b"error" if named else b"")
    assert (body.get("type") == "error") is named


def test_responses_errors_are_flat_too():
    raw = BY_NAME["openai_responses"].stream_error(Rejection(Kind.WITHHELD, "why", incident="i"))
    body = msgspec.json.decode(sse.data_of(raw))
    assert (body["type"], body["code"], body["message"]) == ("error", "response_withheld", "why")
