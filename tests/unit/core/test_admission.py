"""Admission is exact at the limit, monotone, and explicit where it cannot compare."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.admission import Limit, Outcomes, decide, effective_limit, require_short, settles
from gateway.core.capacity import Known, Unknown, Unsafe
from gateway.errors import Kind, Rejection
from gateway.types import AtLeast, Bounded, Counted, Role, Unverifiable

STRICT = Outcomes()
LIMIT = Limit(681_273, "engine")


def admitted(length, limit=LIMIT, outcomes=STRICT):
    try:
        decide(length, limit, outcomes)
    except Rejection as refusal:
        return refusal
    return True


@pytest.mark.parametrize(("tokens", "fits"), [(681_272, 1), (681_273, 1), (681_274, 0)])
def test_the_boundary_is_exact(tokens, fits):
    answer = admitted(Counted((tokens,)))
    if fits:
        assert answer is True
        return
    assert answer.kind is Kind.PROMPT_TOO_LONG
    assert (answer.too_long.tokens, answer.too_long.limit) == (tokens, 681_273)
    assert answer.too_long.limited_by == "engine"


def test_each_item_of_a_batch_is_compared_and_not_their_sum():
    assert admitted(Counted((60, 60)), Limit(100, "engine")) is True
    assert admitted(Counted((60, 101)), Limit(100, "engine")).too_long.tokens == 101


def test_stopped_counts_are_refused_as_at_least():
    answer = admitted(AtLeast(700_000))
    assert answer.too_long.at_least
    assert "at least 700000" in answer.message


def test_a_bound_that_fits_settles_and_one_that_does_not_never_decides():
    assert settles(Bounded(100, 200), Limit(100, "engine"))
    assert not settles(Bounded(101, 101), Limit(100, "engine"))
    assert settles(Bounded(101, 101), None)
    with pytest.raises(ValueError, match="bound"):
        decide(Bounded(101, 101), Limit(100, "engine"), STRICT)


@pytest.mark.parametrize(
    ("transient", "kind"), [(True, Kind.COUNT_UNAVAILABLE), (False, Kind.NOT_COUNTABLE)]
)
def test_what_cannot_be_counted_is_refused_unless_allowed(transient, kind):
    refusal = admitted(Unverifiable("image", transient=transient))
    assert refusal.kind is kind
    assert "image" in refusal.message
    assert admitted(Unverifiable("image"), outcomes=Outcomes(allow_uncountable=True)) is True


def test_the_smaller_of_engine_and_tenant_rules_and_is_named():
    engine = Known(1000, "w", Role.DECODE, 0.0)
    assert effective_limit(engine, None, STRICT) == Limit(1000, "engine")
    assert effective_limit(engine, 200, STRICT) == Limit(200, "tenant policy")
    assert effective_limit(engine, 2000, STRICT) == Limit(1000, "engine")


def test_an_unknown_limit_fails_closed_unless_configured():
    with pytest.raises(Rejection) as refusal:
        effective_limit(Unknown("worker b is silent"), 100, STRICT)
    assert refusal.value.kind is Kind.LIMIT_UNKNOWN
    assert "worker b is silent" in refusal.value.message
    lenient = Outcomes(allow_unknown_limit=True)
    assert effective_limit(Unknown("x"), 100, lenient) == Limit(100, "tenant policy")
    assert effective_limit(Unknown("x"), None, lenient) is None


def test_an_unsafe_engine_is_refused_whatever_is_allowed():
    with pytest.raises(Rejection) as refusal:
        effective_limit(Unsafe("it truncates"), None, Outcomes(True, True))
    assert refusal.value.kind is Kind.ENGINE_UNSAFE


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_admission_is_monotone(tokens, limit):
    if admitted(Counted((tokens,)), Limit(limit, "engine")) is not True:
        assert admitted(Counted((tokens + 1,)), Limit(limit, "engine")) is not True
    else:
        assert admitted(Counted((tokens,)), Limit(limit + 1, "engine")) is True


@pytest.mark.parametrize("length", [Counted((100, 7)), Bounded(100, 150)])
def test_a_suspect_backend_gets_what_is_known_to_be_short(length):
    require_short(length, 100)


@pytest.mark.parametrize(
    "length", [Counted((7, 101)), Bounded(101, 101), AtLeast(1), Unverifiable("image")]
)
def test_and_nothing_else(length):
    with pytest.raises(Rejection) as refusal:
        require_short(length, 100)
    assert refusal.value.kind is Kind.QUARANTINED
