"""What one exchange is as spans, at its edges."""

from __future__ import annotations

import pytest

from gateway.edge.exchange import Asked, Exchange, Stage, Withheld
from gateway.edge.spans import spans
from gateway.edge.trace import Trace
from gateway.errors import Kind, Rejection
from gateway.types import CheckResult, Ending, Observation, Verdict

PLACE = Trace(trace_id=1, span_id=2, engine_id=3, sampled=True)


def exchange(**more):
    made = Exchange("req_1", 100.0, "/v1/chat/completions")
    for name, value in {"ended": 110.0, **more}.items():
        setattr(made, name, value)
    return made


def told(made, now=120.0):
    return {span.name: span for span in spans(made, PLACE, now)}


def served(**more):
    return exchange(
        **{
            "asked": Asked("m", "chat", 10),
            "backend": "b",
            "upstream": "https://engine.example/base",
            "forwarded_at": 102.0,
            "status": 200,
            "observation": Observation(ending=Ending.COMPLETE),
            **more,
        }
    )


def test_an_exchange_that_ended_early_is_one_span():
    [span] = spans(exchange(status=401, refusal=Rejection(Kind.UNAUTHORIZED, "no")), PLACE, 120.0)
    assert (span.began, span.ended) == (100.0, 110.0)
    assert span.attributes["error.type"] == "invalid_api_key"
    assert not any(name.startswith(("gen_ai.", "server.")) for name in span.attributes)


def test_without_a_noted_end_it_ends_now():
    [span] = spans(exchange(ended=None), PLACE, 120.0)
    assert span.ended == 120.0


@pytest.mark.parametrize("method", ["BREW", "get", "x" * 100])
def test_a_method_or_path_of_the_clients_own_is_not_told(method):
    made = exchange(method=method, path="/" + "secret", status=404)
    [span] = spans(made, PLACE, 120.0)
    assert span.name == "HTTP"
    assert span.attributes["http.request.method"] == "_OTHER"
    assert "secret" not in str(span.attributes)


def test_a_first_byte_after_the_end_does_not_reach_beyond_it():
    found = told(served(stream=True, ttft=20.0))
    assert found["prefill"].ended == found["stream"].began == found["stream"].ended == 110.0


def test_a_whole_answer_has_no_prefill_of_its_own():
    assert told(served(ttft=5.0)).keys() == {"chat m", "POST"}


def test_an_https_backend_has_its_port():
    attributes = told(served())["chat m"].attributes
    assert (attributes["server.address"], attributes["server.port"]) == ("engine.example", 443)


@pytest.mark.parametrize(
    ("more", "error", "failed"),
    [
        ({"status": 503, "observation": None}, Kind.UPSTREAM_UNAVAILABLE, (True, True)),
        ({"status": 504, "observation": None}, Kind.UPSTREAM_TIMEOUT, (True, True)),
        ({"status": 502, "observation": None}, Kind.WITHHELD, (True, False)),  # it did answer
    ],
)
def test_a_refusal_after_the_call_is_the_engines_only_where_it_failed(more, error, failed):
    found = list(spans(served(refusal=Rejection(error, "no"), **more), PLACE, 120.0))
    assert found[0].attributes["error.type"] == error.code
    assert (found[0].failed, found[1].failed) == failed


@pytest.mark.parametrize(
    ("more", "error", "failed"),
    [
        ({"client_gone": True}, "client_gone", False),
        ({"status": 422}, "422", False),
        ({"status": 500}, "upstream_error", True),
        ({"observation": Observation(ending=Ending.TRUNCATED)}, "truncated", True),
        ({"observation": Observation(ending=Ending.UPSTREAM_ERROR)}, "upstream_error", True),
        ({}, None, False),
    ],
)
def test_what_is_an_error_and_whose(more, error, failed):
    [whole, *_] = spans(served(**more), PLACE, 120.0)
    assert whole.attributes.get("error.type") == error
    assert whole.failed is failed


def test_checks_incidents_and_a_withheld_answer_before_are_told():
    leak = CheckResult("binding", Verdict.LEAK, "another_request", suspect=True)
    made = served(
        checks=[leak, CheckResult("completeness", Verdict.OK)],
        incidents=["inc_1"],
        withheld=Withheld("first", ()),
    )
    attributes = told(made)["chat m"].attributes
    assert attributes["poolgate.check.binding"] == "leak"
    assert attributes["poolgate.check.binding.reason"] == "another_request"
    assert attributes["poolgate.check.completeness"] == "ok"
    assert attributes["poolgate.incidents"] == ("inc_1",)
    assert attributes["poolgate.withheld_at"] == "first"


def test_each_stage_is_within_the_exchange():
    made = served(stages=[Stage("read", 100.0, 101.0), Stage("count", 101.0, 102.0)])
    found = told(made)
    assert (found["read"].began, found["read"].ended) == (100.0, 101.0)
    assert {found[name].parent for name in ("read", "count", "POST")} == {PLACE.span_id}


def test_the_engine_is_told_of_the_call_and_whether_it_is_sampled():
    trusted = Trace(0xAB, 2, 0xCD, sampled=False, parent_id=9, state="vendor=1")
    assert trusted.headers() == {
        "traceparent": f"00-{0xAB:032x}-{0xCD:016x}-00",
        "tracestate": "vendor=1",
    }
    assert list(PLACE.headers()) == ["traceparent"]


@pytest.mark.parametrize(("secure", "scheme"), [(True, "https"), (False, "http")])
def test_the_scheme_is_the_clients(secure, scheme):
    assert told(served(secure=secure))["chat m"].attributes["url.scheme"] == scheme
