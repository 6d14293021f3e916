"""What no answer can be, what only looks odd, and what looks odd and is an answer."""

import msgspec
import pytest

from gateway.core.completeness import judge_completeness
from gateway.dialects import routes
from gateway.types import Ending, Observation, Usage, Verdict

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES = "/v1/responses"


def request(path=CHAT, **members):
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **members}
    if path in (TEXT, "/v1/embeddings"):
        body |= {"prompt": "x", "input": "x", **members}
    if path == "/v1/responses":
        body |= {"input": "x"}
    return routes.match("POST", path).parse(path, msgspec.json.encode(body))


def seen(prompt=10, completion=3, cached=None, **more):
    usual = {"ending": Ending.COMPLETE, "finish_reasons": ("stop",), "bytes_in": 100}
    return Observation(Usage(prompt, completion, cached), **(usual | more))


def judged(asked, what):
    result = judge_completeness(asked, what)
    return result.verdict, result.reason, result.suspect


OK = (Verdict.OK, "", False)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (request(), seen()),
        (request(), seen(completion=1)),  # the end at once: it is a token
        (request(max_tokens=0), seen(completion=0, finish_reasons=("length",))),
        (request(max_tokens=3), seen(finish_reasons=("length",))),  # all spent on reasoning
        (request(), seen(finish_reasons=("tool_calls",))),
        (request(n=2, max_tokens=3), seen(completion=6, finish_reasons=("stop", "stop"))),
        (request(TEXT, best_of=3, n=1, max_tokens=3), seen(completion=9)),
        (request(TEXT, prompt=["a", "b"], max_tokens=3), seen(completion=6)),
        (request(TEXT, echo=True, logprobs=1, max_tokens=1), seen(completion=1, spoke=True)),
        (request(), seen(cached=10)),
        (request(), seen(prompt=None, completion=None)),
        (request(), Observation(None, Ending.COMPLETE, ("stop",))),  # no usage at all
        (request(RESPONSES), seen(completion=1, finish_reasons=("completed",))),  # an end at once
        (request(RESPONSES), Observation(None, Ending.COMPLETE, ("completed",), spoke=True)),
        (
            request(RESPONSES, max_output_tokens=0),
            seen(completion=0, finish_reasons=("completed",)),
        ),
    ],
)
def test_what_looks_odd_and_is_an_answer(asked, what):
    assert judged(asked, what) == OK


@pytest.mark.parametrize(
    ("reason", "asked", "what"),
    [
        ("empty", request(), seen(finish_reasons=())),
        ("no_finish", request(), seen(finish_reasons=(), spoke=True)),
        ("empty", request(), Observation(ending=Ending.TRUNCATED)),
        ("unreadable", request(), Observation(ending=Ending.TRUNCATED, bytes_in=7)),
        ("no_prompt", request(), seen(prompt=0)),
        ("cached_over_prompt", request(), seen(cached=11)),
        ("over_max_tokens", request(max_tokens=3), seen(completion=5)),
        ("over_max_tokens", request(n=2, max_tokens=3), seen(completion=9)),
        ("empty", request(RESPONSES), seen(completion=0, finish_reasons=("completed",))),
        ("empty", request(RESPONSES), Observation(None, Ending.COMPLETE, ("completed",))),
    ],
)
def test_what_no_engine_may_do(reason, asked, what):
    assert judged(asked, what) == (Verdict.MISMATCH, reason, True)


@pytest.mark.parametrize(
    ("reason", "asked", "what"),
    [
        ("over_max_tokens", request(max_tokens=3), seen(completion=4)),  # sampled, then looked
        ("over_max_tokens", request("/v1/responses", max_output_tokens=3, tools=[{}]), seen(50, 9)),
        ("cached_over_prompt", request(n=2), seen(cached=18)),  # counted for each choice
        ("no_tokens", request(max_tokens=3), seen(completion=0)),
        ("text_without_tokens", request(), seen(completion=0, spoke=True)),
        ("aborted", request(), seen(finish_reasons=("abort",))),
    ],
)
def test_what_may_have_an_innocent_reason(reason, asked, what):
    assert judged(asked, what) == (Verdict.MISMATCH, reason, False)


@pytest.mark.parametrize(
    ("reason", "asked", "what"),
    [
        ("not_generated", request("/v1/embeddings"), seen(finish_reasons=())),
        ("not_scanned", request(), seen(scanned=False, finish_reasons=())),
        ("upstream_error", request(), seen(ending=Ending.UPSTREAM_ERROR, finish_reasons=())),
        ("truncated", request(), seen(ending=Ending.TRUNCATED, events=4)),  # cut visibly elsewhere
    ],
)
def test_what_cannot_be_judged(reason, asked, what):
    assert judged(asked, what) == (Verdict.UNVERIFIABLE, reason, False)
