"""Whose answer it is, by the id in it."""

import pytest

from gateway.core.binding import judge_binding
from gateway.types import Verdict

OWN = "req_" + "a" * 32
OTHER = "req_" + "b" * 32


@pytest.mark.parametrize("told", [OWN, f"chatcmpl-{OWN}", f"resp_{OWN}", f"{OWN}_0"])
@pytest.mark.parametrize("expected", [True, False])
def test_our_own_id_in_any_dress(told, expected):
    assert judge_binding(OWN, told, expected=expected).verdict is Verdict.OK


@pytest.mark.parametrize("told", [OTHER, f"cmpl-{OTHER}"])
@pytest.mark.parametrize("expected", [True, False])
def test_another_requests_id_is_proof_wherever_it_is_seen(told, expected):
    result = judge_binding(OWN, told, expected=expected)
    assert (result.verdict, result.reason, result.suspect) == (
        Verdict.LEAK,
        "another_request",
        True,
    )


def test_an_id_that_is_missing_counts_only_where_it_used_to_come():
    lost = judge_binding(OWN, "chatcmpl-123", expected=True)
    assert (lost.verdict, lost.reason) == (Verdict.LEAK, "id_lost")
    never = judge_binding(OWN, "chatcmpl-123", expected=False)
    assert (never.verdict, never.reason) == (Verdict.UNVERIFIABLE, "no_echo")


@pytest.mark.parametrize("expected", [True, False])
def test_an_answer_without_an_id_tells_nothing(expected):
    result = judge_binding(OWN, None, expected=expected)
    assert (result.verdict, result.reason) == (Verdict.UNVERIFIABLE, "no_id")


def test_an_id_that_changes_counts_where_it_used_to_stay():
    def reason(told, **known):
        return judge_binding(OWN, told, changed=True, **known).reason

    assert reason("chatcmpl-2", expected=False) == "id_changed"
    assert reason(OWN, expected=False) == "id_changed"  # what came before was not ours
    assert reason("chatcmpl-2", expected=True) == "id_lost"
    assert reason(OTHER, expected=True) == "another_request"
