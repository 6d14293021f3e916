from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.settlement import Ended, charge, demand, prompt_tokens
from gateway.limits.base import Used
from gateway.limits.policy import Demand
from gateway.settings import Policy
from gateway.types import (
    AtLeast,
    Bounded,
    Counted,
    Ending,
    Observation,
    ParsedRequest,
    PromptLength,
    TextPrompt,
    TokenIdPrompt,
    Unverifiable,
    Usage,
)

RAW = b"x" * 321
POLICY = Policy(reserve_output_tokens=7)
LENGTH = Counted((100,))
WHOLE = Observation(Usage(90, 30), Ending.COMPLETE, events=5, bytes_in=900, response_id="x")
ENDED = Ended(WHOLE, 200, 900, sent=True, refused=False, client_gone=False)


def request(**more: Any) -> ParsedRequest:
    fields = {"prompt": TextPrompt(("a",)), **more}
    return ParsedRequest("d", "/p", RAW, {}, "m", stream=True, **fields)


# --- before -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "sure", "most"),
    [
        (Counted((60, 40)), 100, 100),
        (AtLeast(100), 100, 100),
        (Bounded(60, 100), 0, 100),
        (Unverifiable("image"), 0, len(RAW)),
        (None, 0, len(RAW)),
    ],
)
def test_a_prompt_is_sure_only_where_it_was_counted(
    length: PromptLength | None, sure: int, most: int
) -> None:
    found = demand(request(max_output_tokens=5), length, POLICY)
    assert found == Demand(Used(sure, 5), Used(most, 5))


def test_peers_31_an_uncounted_prompt_costs_its_bytes_and_never_nothing() -> None:
    assert prompt_tokens(request(), Unverifiable("no_tokenizer")) == len(RAW)


@pytest.mark.parametrize(
    ("maximum", "choices", "sure", "most"),
    [(None, 1, 0, 7), (None, 3, 0, 21), (5, 1, 5, 5), (5, 4, 20, 20), (0, 1, 0, 0)],
)
def test_every_answer_has_its_output(
    maximum: int | None, choices: int, sure: int, most: int
) -> None:
    found = demand(request(max_output_tokens=maximum, choices=choices), LENGTH, POLICY)
    assert (found.sure.output, found.most.output) == (sure, most)


@pytest.mark.parametrize("prompt", [TextPrompt(("a", "b", "c")), TokenIdPrompt((1, 2, 3), 9)])
def test_every_prompt_of_a_batch_has_its_answers(prompt: Any) -> None:
    found = demand(request(prompt=prompt, max_output_tokens=5, choices=2), LENGTH, POLICY)
    assert found.most.output == 3 * 2 * 5


def test_what_generates_nothing_reserves_no_output() -> None:
    found = demand(request(max_output_tokens=5, generates=False), LENGTH, POLICY)
    assert found.most == Used(100, 0)


# --- afterwards -------------------------------------------------------------------------------


def charged(ended: Ended = ENDED, **policy: Any) -> Used | None:
    return charge(request(), LENGTH, Policy(**policy), ended)


def test_the_engines_usage_is_charged_not_ours() -> None:
    assert charged() == Used(90, 30)


@pytest.mark.parametrize(
    ("weight", "charged_input"),
    [(1.0, 90), (0.0, 10), (0.5, 50), (0.1, 18), (0.01, 11)],
)
def test_peers_28_cached_tokens_count_by_their_weight_and_never_twice(
    weight: float, charged_input: int
) -> None:
    seen = replace(WHOLE, usage=Usage(90, 30, 80))
    assert charged(replace(ENDED, seen=seen), cached_token_weight=weight) == Used(charged_input, 30)


def test_a_weight_is_not_rounded_up_by_a_binary_fraction() -> None:
    seen = replace(WHOLE, usage=Usage(30, 0, 30))
    assert charged(replace(ENDED, seen=seen), cached_token_weight=0.1) == Used(3, 0)


def test_more_cached_than_there_is_gives_nothing_back() -> None:
    seen = replace(WHOLE, usage=Usage(10, 1, 80))
    assert charged(replace(ENDED, seen=seen), cached_token_weight=0.0) == Used(0, 1)


NO_USAGE = replace(WHOLE, usage=None)
CUT = replace(WHOLE, usage=None, ending=Ending.TRUNCATED)
FAILED = Observation(None, Ending.UPSTREAM_ERROR, events=2, bytes_in=90)
ONLY_PROMPT = replace(WHOLE, usage=Usage(90))


@pytest.mark.parametrize(
    ("ended", "used"),
    [
        # an answer without usage: our count, an event a token
        (replace(ENDED, seen=NO_USAGE), Used(100, 5)),
        (replace(ENDED, seen=ONLY_PROMPT), Used(90, 5)),
        # cut short after output went out: the prompt, and what came
        (replace(ENDED, seen=CUT), Used(100, 5)),
        # what the engine told before the cut is older than the last event
        (replace(ENDED, seen=replace(CUT, usage=Usage(90, 1))), Used(90, 5)),
        (replace(ENDED, seen=replace(CUT, usage=Usage(90, 9))), Used(90, 9)),
        # left by its client
        (replace(ENDED, seen=CUT, client_gone=True), Used(100, 5)),
        (replace(ENDED, seen=None, status=0, bytes_out=0, client_gone=True), Used(100, 0)),
        (replace(ENDED, client_gone=True, bytes_out=0), Used(90, 30)),  # read out nevertheless
        # an error after an answer had begun
        (replace(ENDED, seen=replace(FAILED, response_id="x")), Used(100, 2)),
        # an error that tells usage
        (replace(ENDED, status=500, seen=replace(FAILED, usage=Usage(90, 3))), Used(90, 3)),
    ],
)
def test_row_35_what_is_charged(ended: Ended, used: Used) -> None:
    assert charged(ended) == used


@pytest.mark.parametrize(
    "ended",
    [
        replace(ENDED, refused=True),  # withheld, timed out, refused by the queue
        replace(ENDED, seen=None),
        replace(ENDED, seen=replace(CUT, events=0), bytes_out=0),
        replace(ENDED, seen=FAILED, status=500),
        replace(ENDED, seen=FAILED),  # an error inside a 200
        replace(ENDED, seen=FAILED, client_gone=True),
        replace(ENDED, seen=None, sent=False, client_gone=True),  # it never left the queue
    ],
)
def test_row_34_what_is_free(ended: Ended) -> None:
    assert charged(ended) is None


def test_a_whole_answer_without_usage_and_events_is_charged_by_its_bytes() -> None:
    seen = Observation(None, Ending.COMPLETE, bytes_in=401)
    ended = replace(ENDED, seen=seen)
    assert charge(request(), LENGTH, POLICY, ended) == Used(100, 101)
    capped = request(max_output_tokens=20, choices=2)
    assert charge(capped, LENGTH, POLICY, ended) == Used(100, 40)
    assert charge(request(generates=False), LENGTH, POLICY, ended) == Used(100, 0)


def test_an_uncounted_prompt_without_usage_is_charged_by_its_bytes() -> None:
    ended = replace(ENDED, seen=NO_USAGE)
    assert charge(request(), Unverifiable("image"), POLICY, ended) == Used(len(RAW), 5)


@given(
    prompt=st.none() | st.integers(0, 10**7),
    cached=st.none() | st.integers(0, 10**8),
    weights=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_weight_charges_between_what_is_not_cached_and_all(
    prompt: int | None, cached: int | None, weights: tuple[float, float]
) -> None:
    seen = replace(WHOLE, usage=Usage(prompt, 30, cached))
    ended = replace(ENDED, seen=seen)
    lighter, heavier = (charged(ended, cached_token_weight=weight) for weight in sorted(weights))
    whole = LENGTH.total if prompt is None else prompt
    assert lighter is not None
    assert heavier is not None
    assert max(0, whole - (cached or 0)) <= lighter.input <= heavier.input <= whole
