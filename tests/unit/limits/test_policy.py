from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import Kind
from gateway.limits.base import Charge, Concurrency, LimitKey, Refused, Unit, Used
from gateway.limits.gcra import Decision, Quota
from gateway.limits.policy import (
    Demand,
    charges,
    headers,
    metered,
    over_allowance,
    rejection,
    standing,
)
from gateway.settings import Policy, Quotas

TOKENS = Used(30, 20)
SURE = Demand(TOKENS, TOKENS)


def charged(policy: Policy, model: str = "m", demand: Demand = SURE) -> tuple[Charge, ...]:
    return charges(metered("t", policy), model, demand)


FULL = Policy(requests_per_minute=600, tokens_per_minute=1000, tokens_per_day=9000, concurrent=3)
REQUESTS, MINUTE, DAY, SLOTS = charged(FULL)
APART = Policy(input_tokens_per_minute=100, output_tokens_per_minute=200, tokens_per_month=3000)
INPUT, OUTPUT, MONTH = charged(APART)


def test_every_quota_of_a_policy_is_charged_in_its_unit() -> None:
    def key(name: str) -> LimitKey:
        return LimitKey("t", name)

    assert [
        Charge(key("requests per minute"), Unit.REQUESTS, Quota(600, 60.0, 600), 1),
        Charge(key("tokens per minute"), Unit.TOKENS, Quota(1000, 60.0, 1000), 50),
        Charge(key("tokens per day"), Unit.TOKENS, Quota(9000, 86400.0, 9000), 50),
        Charge(key("concurrent requests"), Unit.SLOTS, Concurrency(3), 1),
    ] == [REQUESTS, MINUTE, DAY, SLOTS]
    assert [
        Charge(key("input tokens per minute"), Unit.INPUT, Quota(100, 60.0, 100), 30),
        Charge(key("output tokens per minute"), Unit.OUTPUT, Quota(200, 60.0, 200), 20),
        Charge(key("tokens per 30 days"), Unit.TOKENS, Quota(3000, 2592000.0, 3000), 50),
    ] == [INPUT, OUTPUT, MONTH]


def test_a_policy_without_quotas_charges_nothing() -> None:
    much = Used(10**9, 10**9)
    assert charged(Policy(), demand=Demand(much, much)) == ()


def test_shadow_is_passed_on() -> None:
    asked = charged(Policy(concurrent=1, shadow=True))
    assert [charge.shadow for charge in asked] == [True]


def test_a_burst_is_what_may_be_used_at_once() -> None:
    policy = Policy(requests_per_minute=600, bursts={"requests_per_minute": 50})
    (charge,) = charged(policy)
    assert charge.quota == Quota(600, 60.0, 50)


BY_MODEL = Policy(
    concurrent=9,
    per_model={
        "glm-*": Quotas(requests_per_minute=5, concurrent=2),
        "*-5": Quotas(concurrent=1),
        "qwen3": Quotas(concurrent=4),
    },
    shadow=True,
)


@pytest.mark.parametrize(
    ("model", "patterns"),
    [
        ("glm-4", [None, "glm-*", "glm-*"]),
        ("glm-5", [None, "glm-*", "glm-*", "*-5"]),
        ("GLM-5", [None, "*-5"]),
        ("other", [None]),
    ],
)
def test_a_model_counts_under_every_pattern_that_covers_it(
    model: str, patterns: list[str | None]
) -> None:
    asked = charged(BY_MODEL, model)
    assert [charge.key.model for charge in asked] == patterns
    assert len({charge.key for charge in asked}) == len(asked)
    assert all(charge.shadow for charge in asked)


def test_every_quota_there_is_for_operators() -> None:
    asked = standing(metered("t", BY_MODEL))
    assert [(charge.key.model, charge.key.name) for charge in asked] == [
        (None, "concurrent requests"),
        ("glm-*", "requests per minute"),
        ("glm-*", "concurrent requests"),
        ("*-5", "concurrent requests"),
        ("qwen3", "concurrent requests"),
    ]


def costs(sure: Used, most: Used, **quotas: int) -> list[int]:
    return [charge.cost for charge in charged(Policy(**quotas), demand=Demand(sure, most))]


def test_peers_16_what_is_assumed_never_asks_for_more_than_a_whole_allowance() -> None:
    assumed = Used(10, 1024)
    assert costs(Used(10, 0), assumed, tokens_per_minute=100) == [100]
    assert costs(Used(10, 0), assumed, output_tokens_per_minute=100) == [100]
    assert costs(Used(10, 0), assumed, tokens_per_minute=5000) == [1034]
    assert costs(Used(0, 0), Used(500, 0), input_tokens_per_minute=100) == [100]


def test_what_is_sure_asks_for_all_of_it() -> None:
    assert costs(Used(101, 0), Used(101, 1024), tokens_per_minute=100) == [101]
    assert costs(Used(10, 5000), Used(10, 5000), tokens_per_minute=100) == [5010]


@pytest.mark.parametrize(
    ("quotas", "over"),
    [
        ({"tokens_per_minute": 49}, True),
        ({"tokens_per_minute": 50}, False),
        ({"input_tokens_per_minute": 29}, True),
        ({"input_tokens_per_minute": 30, "output_tokens_per_minute": 20}, False),
        ({"output_tokens_per_minute": 19}, True),
        ({"tokens_per_minute": 1, "shadow": True}, False),
        ({"requests_per_minute": 1, "concurrent": 1}, False),
        ({"tokens_per_day": 99, "bursts": {"tokens_per_day": 49}}, True),
    ],
)
def test_what_is_over_a_whole_allowance(quotas: dict[str, Any], over: bool) -> None:
    asked = charged(Policy(**quotas))
    assert over_allowance(asked, TOKENS) is over


def test_all_headers() -> None:
    told = headers(
        {
            REQUESTS: Decision(True, 600, 599, 0.1),
            MINUTE: Decision(True, 1000, 950, 3.0),
            DAY: Decision(True, 9000, 8950, 480.0),
            SLOTS: Decision(True, 3, 2, 0.0),
            INPUT: Decision(True, 100, 70, 18.0),
            OUTPUT: Decision(True, 200, 180, 6.0),
        }
    )
    assert told == {
        "x-ratelimit-limit-input-tokens": "100",
        "x-ratelimit-remaining-input-tokens": "70",
        "x-ratelimit-reset-input-tokens": "18",
        "x-ratelimit-limit-output-tokens": "200",
        "x-ratelimit-remaining-output-tokens": "180",
        "x-ratelimit-reset-output-tokens": "6",
        "x-ratelimit-limit-requests": "600",
        "x-ratelimit-remaining-requests": "599",
        "x-ratelimit-reset-requests": "1",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "950",
        "x-ratelimit-reset-tokens": "3",
    }


def test_of_two_token_quotas_the_tighter_is_told_and_of_equals_the_slower() -> None:
    def told(minute: Decision, day: Decision) -> str:
        return headers({MINUTE: minute, DAY: day})["x-ratelimit-limit-tokens"]

    assert told(Decision(True, 1000, 950, 3.0), Decision(True, 9000, 20, 9.0)) == "9000"
    assert told(Decision(True, 1000, 0, 60.0), Decision(True, 9000, 0, 86400.0)) == "9000"
    assert told(Decision(True, 1000, 0, 60.0), Decision(True, 9000, 1, 86400.0)) == "1000"


def test_a_unit_without_quota_has_no_headers() -> None:
    assert headers({}) == {}
    assert headers({SLOTS: Decision(True, 3, 2, 0.0)}) == {}


@pytest.mark.parametrize(("wait", "told"), [(0.001, 1), (1.0, 1), (1.001, 2), (59.2, 60)])
def test_row_39_a_refusal_names_the_quota_and_a_whole_wait(wait: float, told: int) -> None:
    decision = Decision(False, 1000, 10, 60.0, wait)
    refusal = rejection(Refused(MINUTE, decision, {MINUTE: decision}))
    assert refusal.kind is Kind.RATE_LIMITED
    assert refusal.retry_after == told
    assert refusal.message == (
        "Rate limit reached for tokens per minute: limit 1000, remaining 10, requested 50. "
        f"Try again in {told} s."
    )


def test_row_39_a_request_over_the_whole_allowance_is_not_told_to_wait() -> None:
    decision = Decision(False, 9000, 9000, 0.0, None)
    refusal = rejection(Refused(DAY, decision, {DAY: decision}))
    assert refusal.kind is Kind.EXCEEDS_ALLOWANCE
    assert refusal.retry_after is None
    assert "50 tokens, more than the whole allowance of 9000 tokens per day" in refusal.message


def test_row_39_a_quota_of_some_models_is_named_with_them() -> None:
    charge = charged(BY_MODEL, "glm-4")[1]
    decision = Decision(False, 5, 0, 60.0, 12.0)
    message = rejection(Refused(charge, decision, {charge: decision})).message
    assert "Rate limit reached for requests per minute for models glm-*: limit 5" in message
