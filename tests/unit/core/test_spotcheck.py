"""The engine's count against ours."""

import pytest

from gateway.core.neighbours import ENDED_KEPT, Neighbours
from gateway.core.spotcheck import AGREED, judge_bound, judge_prompt_tokens
from gateway.types import AtLeast, Bounded, Counted, Unverifiable, Usage, Verdict


def verdict(ours, returned, **more):
    result = judge_prompt_tokens(ours, Usage(prompt_tokens=returned), **more)
    return result.verdict, result.reason, result.suspect


@pytest.mark.parametrize(
    ("ours", "returned", "expected"),
    [
        (Counted((15,)), 15, (Verdict.OK, "", False)),
        (Counted((15,)), 16, (Verdict.MISMATCH, "differs", False)),
        (Counted((1409,)), 100, (Verdict.MISMATCH, "under_half", True)),  # vLLM cut in silence
        (Counted((284_937,)), 1, (Verdict.MISMATCH, "under_half", True)),  # sglang #30233
        (Counted((100,)), 50, (Verdict.MISMATCH, "differs", False)),
        (Counted((100,)), 49, (Verdict.MISMATCH, "under_half", True)),
        (Counted((3, 2)), 5, (Verdict.OK, "", False)),
        (Bounded(400, 400), 100, (Verdict.UNVERIFIABLE, "only_bounded", False)),
        (Bounded(400, 400), 401, (Verdict.MISMATCH, "above_bound", False)),
        (AtLeast(1000), 400, (Verdict.MISMATCH, "under_half", True)),
        (AtLeast(1000), 1000, (Verdict.UNVERIFIABLE, "not_counted", False)),
        (Unverifiable("image"), 5, (Verdict.UNVERIFIABLE, "image", False)),
        (Counted((15,)), None, (Verdict.UNVERIFIABLE, "no_usage", False)),
    ],
)
def test_verdicts(ours, returned, expected):
    assert verdict(ours, returned) == expected


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        (Counted((40, 60)), Verdict.OK),
        (Counted((40, 61)), Verdict.MISMATCH),
        (Counted((60, 60)), Verdict.MISMATCH),
        (Unverifiable("busy"), Verdict.UNVERIFIABLE),
    ],
)
def test_a_bound_below_the_count_is_never_missed(counted, expected):
    result = judge_bound(Bounded(60, 100), counted)
    assert result.verdict is expected
    assert result.suspect is (expected is Verdict.MISMATCH)


def test_no_usage_at_all_is_unverifiable_and_never_ok():
    assert judge_prompt_tokens(Counted((15,)), None).verdict is Verdict.UNVERIFIABLE


def test_an_engine_that_reports_only_the_first_prompt_of_a_batch():  # llama.cpp capture
    assert verdict(Counted((3, 2)), 3, first_only=True) == (Verdict.OK, "", False)


@pytest.mark.parametrize(
    ("ours", "returned", "expected"),
    [
        (Counted((15,)), 15, (Verdict.OK, "", False)),
        (Counted((15,)), 16, (Verdict.UNVERIFIABLE, "differs", False)),
        (Counted((100,)), 49, (Verdict.MISMATCH, "under_half", True)),
        (Bounded(400, 400), 401, (Verdict.UNVERIFIABLE, "differs", False)),
        (Bounded(400, 400), 100, (Verdict.UNVERIFIABLE, "only_bounded", False)),
        (AtLeast(1000), 400, (Verdict.MISMATCH, "under_half", True)),
        (Unverifiable("image"), 5, (Verdict.UNVERIFIABLE, "image", False)),
    ],
)
def test_a_count_in_doubt_proves_nothing_but_a_suspect(ours, returned, expected):
    assert verdict(ours, returned, doubt="differs") == expected


@pytest.mark.parametrize("ours", [Unverifiable("image"), Bounded(2000, 2000), Counted((1001,))])
def test_an_answer_to_a_prompt_over_the_engines_own_limit_is_suspect(ours):
    result = judge_prompt_tokens(ours, Usage(1001), engine_limit=1000)
    assert (result.reason, result.suspect) == ("over_limit", True)
    assert judge_prompt_tokens(ours, Usage(1000), engine_limit=1000).reason != "over_limit"


@pytest.mark.parametrize(
    ("agreed", "returned", "doubt", "expected"),
    [
        (AGREED, 80, None, (Verdict.MISMATCH, "anothers", True)),
        (AGREED, 20, None, (Verdict.MISMATCH, "anothers", True)),
        (AGREED, 81, None, (Verdict.MISMATCH, "differs", False)),
        (AGREED - 1, 80, None, (Verdict.MISMATCH, "differs", False)),
        (AGREED, 80, "differs", (Verdict.UNVERIFIABLE, "differs", False)),
        (AGREED, 100, None, (Verdict.OK, "", False)),
    ],
)
def test_a_count_that_is_another_requests_is_its_answer(agreed, returned, doubt, expected):
    anothers = {80, 20, 100}.__contains__
    told = verdict(Counted((100,)), returned, doubt=doubt, anothers=anothers, agreed=agreed)
    assert told == expected


def test_neighbours_are_those_that_ran_at_the_same_time():
    here = Neighbours()
    before = here.begin()
    before.count = 1
    here.end(before)
    mine, longer = here.begin(), here.begin()
    mine.count, longer.count = 5, 2
    shorter = here.begin()
    shorter.count = 3
    here.end(shorter)
    here.end(mine)
    after = here.begin()
    after.count = 4
    assert [count for count in range(6) if here.has(count, mine)] == [2, 3]
    here.end(longer)
    assert here.has(2, mine)
    assert here.has(5, longer)
    assert not here.has(5, mine)


def test_those_whose_count_is_not_known_are_nobodys_neighbours():
    here = Neighbours()
    mine = here.begin()
    here.begin()
    assert not any(here.has(count, mine) for count in range(10))


def test_what_ended_is_forgotten_in_the_end():
    here = Neighbours()
    mine = here.begin()
    for count in range(2 * ENDED_KEPT):
        other = here.begin()
        other.count = count
        here.end(other)
    assert [here.has(count, mine) for count in (0, 2 * ENDED_KEPT - 1)] == [False, True]
