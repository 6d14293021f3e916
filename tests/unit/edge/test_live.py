"""What the record of an exchange leaves for the page."""

from __future__ import annotations

import pytest

from gateway.edge.exchange import Exchange, Withheld
from gateway.edge.live import Live
from gateway.types import CheckResult, Ending, Observation, Usage, Verdict

FAST = CheckResult("latency", Verdict.MISMATCH, "faster_than_prefill", 1.0, 0.1, True)
OTHER = CheckResult("binding", Verdict.LEAK, "another_request", suspect=True)


@pytest.fixture
def live():
    return Live(lambda: 100.0)


def ended(*, usage=None, **known):
    exchange = Exchange("req_1", 99.0, "/v1/chat/completions")
    exchange.observation = Observation(ending=Ending.COMPLETE, usage=usage)
    exchange.tenant, exchange.backend = "a", "glm"
    for name, value in known.items():
        setattr(exchange, name, value)
    return exchange


def answered(*, checks=(), **known):
    return ended(
        **{"status": 200, "stream": True, "ttft": 0.5, "uncached": 900} | known, checks=list(checks)
    )


def test_tokens_are_the_engines_and_none_where_it_tells_none(live):
    live.note(ended(status=200, usage=Usage(prompt_tokens=7, completion_tokens=3)))
    live.note(ended(status=200, usage=Usage()))
    live.note(ended(status=400, observation=None))
    [told] = live.traffic({}, 60.0)["tenants"]
    assert told == {
        "id": "a",
        "requests": 3,
        "input_tokens": 7,
        "output_tokens": 3,
        "answered_400": 1,
        "answered_429": 0,
        "answered_5xx": 0,
        "in_flight": 0,
    }


@pytest.mark.parametrize(
    ("exchange", "rows"),
    [
        (answered(), [[900, 0.5, False, 0.0]]),
        (answered(stream=False), []),  # its first byte is the whole answer's
        (answered(stream=False, checks=[FAST]), [[900, 0.5, True, 0.0]]),
        (answered(checks=[OTHER]), [[900, 0.5, False, 0.0]]),  # suspect, but not for its speed
        (answered(uncached=None), []),
        (answered(ttft=None), []),
    ],
)
def test_first_tokens_of_streams_and_of_what_came_too_fast(live, exchange, rows):
    live.note(exchange)
    assert live.first_tokens("glm") == rows


def test_an_answer_withheld_and_asked_for_elsewhere_is_the_first_backends(live):
    live.note(answered(backend="b", withheld=Withheld("a", (FAST,), 0.1, 50_000)))
    assert live.first_tokens("a") == [[50_000, 0.1, True, 0.0]]
    assert live.first_tokens("b") == [[900, 0.5, False, 0.0]]


def test_an_exchange_takes_its_first_answer_along():
    exchange = answered(checks=[FAST])
    other = answered(backend="b", length=None)
    exchange.again(other, sent=True)
    assert exchange.withheld == Withheld("glm", (FAST,), 0.5, 900)
    assert (exchange.ttft, exchange.uncached) == (None, None)
