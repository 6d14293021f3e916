from __future__ import annotations

import pytest

from gateway.errors import Kind
from gateway.limits.base import Charge, Concurrency, LimitKey, Refused, Unit
from gateway.limits.gcra import Decision, Quota
from gateway.limits.policy import charges, estimate, headers, rejection
from gateway.settings import Policy

FULL = Policy(requests_per_minute=600, tokens_per_minute=1000, tokens_per_day=9000, concurrent=3)
REQUESTS, MINUTE, DAY, SLOTS = charges("t", FULL, 50)


@pytest.mark.parametrize(
    ("maximum", "choices", "tokens"),
    [(None, 1, 107), (None, 3, 121), (5, 1, 105), (5, 4, 120), (0, 1, 100)],
)
def test_the_estimate_is_the_prompt_and_every_answers_output(
    maximum: int | None, choices: int, tokens: int
) -> None:
    assert estimate(100, maximum, choices, Policy(reserve_output_tokens=7)) == tokens


def test_every_quota_of_a_policy_is_charged_in_its_unit() -> None:
    assert (
        Charge(LimitKey("t", "requests per minute"), Unit.REQUESTS, Quota(600, 60.0, 600), 1)
        == REQUESTS
    )
    assert (
        Charge(LimitKey("t", "tokens per minute"), Unit.TOKENS, Quota(1000, 60.0, 1000), 50)
        == MINUTE
    )
    assert (
        Charge(LimitKey("t", "tokens per day"), Unit.TOKENS, Quota(9000, 86400.0, 9000), 50) == DAY
    )
    assert Charge(LimitKey("t", "concurrent requests"), Unit.SLOTS, Concurrency(3), 1) == SLOTS


def test_a_policy_without_quotas_charges_nothing() -> None:
    assert charges("t", Policy(), 10**9) == ()


def test_shadow_is_passed_on() -> None:
    assert [c.shadow for c in charges("t", Policy(concurrent=1, shadow=True), 1)] == [True]


def test_all_headers() -> None:
    told = headers(
        {
            REQUESTS: Decision(True, 600, 599, 0.1),
            MINUTE: Decision(True, 1000, 950, 3.0),
            DAY: Decision(True, 9000, 8950, 480.0),
            SLOTS: Decision(True, 3, 2, 0.0),
        }
    )
    assert told == {
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
