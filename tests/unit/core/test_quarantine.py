"""Where a backend stands after what was found: who is believed, and who may be taken out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.quarantine import (
    CLUES_KEPT,
    NOTHING,
    Case,
    Clue,
    Mark,
    Rules,
    Standing,
    State,
    agreed,
    merged,
    of_unknown_tenants,
    release,
    reported,
    standing,
    within_share,
)
from gateway.types import Evidence

RULES = Rules(floor=100, window=60.0)
CERTAIN, STRONG, WEAK = Evidence.CERTAIN, Evidence.STRONG, Evidence.WEAK


def clue(evidence=STRONG, check="latency", tenant="a", when=0.0, forgeable=False):
    return Clue(when, check, tenant, evidence, forgeable)


A, B = ("a", "http://a"), ("b", "http://b")
PAIR = {place: {"m": {"a", "b"}} for place in (A, B)}
ALONE = {A: {"m": {"a"}}}


def case_of(*clues, room=True, rules=RULES):
    """The case of one of several backends after some clues, each judged as it comes."""
    cases = {}
    for one in clues:
        found = {A: reported(cases.get(A, NOTHING), one)}
        cases = agreed(cases, found, PAIR if room else ALONE, one.at, rules)
    return cases.get(A, NOTHING)


def after(*clues, room=True, rules=RULES):
    now = max((one.at for one in clues), default=0.0)
    return standing(case_of(*clues, room=room, rules=rules), now, rules)


def at(case, now):
    return standing(case, now, RULES)


def test_certain_evidence_that_no_tenant_can_make_takes_out_at_once():
    assert after(clue(CERTAIN)).state is State.QUARANTINED


@pytest.mark.parametrize("evidence", [CERTAIN, STRONG])
def test_what_tenants_could_make_only_casts_suspicion(evidence):
    assert after(clue(evidence, forgeable=True)).state is State.SUSPECT


def test_one_tenant_repeating_one_finding_proves_nothing():
    framing = [clue(CERTAIN, "sentinel", "a", float(n), forgeable=True) for n in range(40)]
    assert after(*framing).state is State.SUSPECT


@pytest.mark.parametrize("second", [clue(tenant="b", when=1.0), clue(check="x", when=1.0)])
def test_another_tenant_or_another_check_corroborates(second):
    assert after(clue(), second).state is State.QUARANTINED


def test_a_clue_that_is_too_old_corroborates_nothing():
    assert after(clue(), clue(tenant="b", when=60.0)).state is State.SUSPECT


def test_weak_evidence_moves_nothing():
    assert after(clue(WEAK), clue(WEAK, tenant="b")) == Standing()


def test_suspicion_ends_by_time_a_quarantine_does_not():
    assert at(case_of(clue()), 59.9).state is State.SUSPECT
    over = at(case_of(clue()), 60.0)
    assert (over.state, over.since, over.reason) == (State.SERVING, 60.0, "no further finding")
    assert at(case_of(clue(CERTAIN)), 1e9).state is State.QUARANTINED


def test_the_cap_leaves_it_suspect_and_says_so():
    told = after(clue(CERTAIN), room=False)
    assert (told.state, told.capped) == (State.SUSPECT, True)
    assert not after(clue(), room=False).capped


def test_the_cap_says_so_of_one_that_was_suspect_before():
    assert after(clue(), clue(CERTAIN, when=1.0), room=False).capped


def test_who_repeats_itself_displaces_nobody_elses_clue():
    flood = [clue(tenant="a", when=float(n)) for n in range(1, 40)]
    told = after(clue(tenant="b"), *flood, room=False)
    assert {one.tenant for one in told.clues} == {"a", "b"}
    assert told.capped


def test_a_release_forgets_what_was_held_against_it():
    case = release(case_of(clue(CERTAIN)), 5.0, "operator")
    assert at(case, 5.0) == Standing(State.SERVING, 5.0, "released by operator")
    again = reported(case, clue(tenant="b", when=6.0))
    assert at(again, 6.0).state is State.SUSPECT


def test_clocks_that_differ_do_not_undo_a_release_nor_hide_what_comes_after_it():
    ahead = case_of(clue(CERTAIN, when=100.0))
    case = release(ahead, 5.0, "operator")  # by a gateway whose clock is behind
    assert at(merged(case, ahead), 5.0).state is State.SERVING
    assert at(reported(case, clue(when=6.0)), 6.0).state is State.SUSPECT


def test_tenants_that_cannot_be_told_apart_corroborate_nothing():
    one = of_unknown_tenants(case_of(clue(tenant="a")))
    assert at(reported(one, clue(tenant="b", when=1.0)), 1.0).capped is False
    assert at(reported(one, clue(check="x", when=1.0)), 1.0).capped is True


# --- several gateways --------------------------------------------------------------------------


def test_clues_of_two_gateways_convict():
    shared, mine = {A: case_of(clue(tenant="a"))}, {A: case_of(clue(tenant="b", when=1.0))}
    assert agreed(shared, mine, PAIR, 2.0, RULES)[A].out == Mark(1.0, "latency")


def test_who_is_out_by_agreement_keeps_others_in():
    shared, mine = {A: case_of(clue(CERTAIN, when=9.0))}, {B: case_of(clue(CERTAIN))}
    assert mine[B].out is not None
    cases = agreed(shared, mine, PAIR, 9.0, RULES)
    assert cases[A].out is not None
    assert cases[B].out is None
    told = standing(cases[B], 9.0, RULES)
    assert (told.state, told.capped) == (State.SUSPECT, True)


def test_who_was_taken_out_first_stays_out_where_the_store_forgot_both():
    mine = {A: case_of(clue(CERTAIN, when=2.0)), B: case_of(clue(CERTAIN, when=1.0))}
    cases = agreed({}, mine, PAIR, 3.0, RULES)
    assert (cases[A].out, cases[B].out) == (None, Mark(1.0, "latency"))


def test_who_was_out_stays_out_where_the_store_forgot_it_and_another_was_found_sooner():
    mine = {A: case_of(clue(CERTAIN, when=2.0)), B: case_of(clue(CERTAIN, when=1.0), room=False)}
    cases = agreed({}, mine, PAIR, 3.0, RULES)
    assert (cases[A].out, cases[B].out) == (Mark(2.0, "latency"), None)


def test_what_was_decided_is_not_judged_again_without_another_finding():
    shared = {A: case_of(clue(CERTAIN), room=False)}
    assert agreed(shared, shared, PAIR, 1.0, RULES) == shared
    mine = {A: reported(shared[A], clue(when=1.0))}
    assert agreed(shared, mine, PAIR, 1.0, RULES)[A].out is not None


def test_a_release_elsewhere_ends_a_quarantine_here():
    mine = {A: case_of(clue(CERTAIN))}
    shared = {A: release(mine[A], 5.0, "operator")}
    assert agreed(shared, mine, PAIR, 6.0, RULES)[A].out is None


def test_backends_of_another_configuration_are_left_as_they_are():
    other = ("c", "http://c")
    shared = {other: Case(clues=(clue(CERTAIN),))}
    assert agreed(shared, {}, PAIR, 1.0, RULES) == shared
    mine = {other: case_of(clue(CERTAIN))}
    assert agreed({}, mine, PAIR, 1.0, RULES) == mine  # a store that forgot is told again


def test_shares_are_counted_for_each_model():
    serving = {"m": {"a", "b"}, "n": {"a", "b", "c", "d"}}
    assert within_share("a", serving, (), 0.5)
    assert not within_share("a", serving, ("b",), 0.5)
    assert within_share("a", serving, ("z",), 0.5)  # serves neither model
    assert not within_share("a", {"m": {"a"}}, (), 0.5)  # the last one
    assert within_share("a", {"m": {"a"}}, (), 1.0)
    assert not within_share("a", serving, (), 0.0)


CLUES = st.builds(
    clue,
    evidence=st.sampled_from(Evidence),
    check=st.sampled_from(["latency", "sentinel", "binding"]),
    tenant=st.sampled_from("ab"),
    when=st.floats(0, 200),
    forgeable=st.booleans(),
)


@given(st.lists(CLUES, max_size=30), st.booleans())
def test_no_series_of_clues_breaks_the_rules(clues, room):
    cases = {}
    for one in sorted(clues, key=lambda each: each.at):
        before = standing(cases.get(A, NOTHING), one.at, RULES)
        found = {A: reported(cases.get(A, NOTHING), one)}
        cases = agreed(cases, found, PAIR if room else ALONE, one.at, RULES)
        told = standing(cases[A], one.at, RULES)
        assert len(cases[A].clues) <= CLUES_KEPT
        if before.state is State.QUARANTINED:
            assert told.state is State.QUARANTINED  # only a release ends it
        if one.evidence is WEAK:
            assert told == before
        if told.state is State.QUARANTINED and before.state is not State.QUARANTINED:
            counted = [c for c in clues if c.evidence is not WEAK and one.at - c.at < RULES.window]
            alone = any(c.evidence is CERTAIN and not c.forgeable for c in counted)
            assert alone or len({(c.check, c.tenant) for c in counted}) > 1
        if not room:
            assert told.state is not State.QUARANTINED


@given(st.lists(CLUES.filter(lambda one: one.tenant == "a"), max_size=30))
def test_one_tenant_with_one_forgeable_check_never_takes_a_backend_out(clues):
    framing = [
        clue(one.evidence, "sentinel", "a", one.at, True)
        for one in sorted(clues, key=lambda each: each.at)
    ]
    assert after(*framing).state is not State.QUARANTINED


MARKS = st.builds(Mark, st.sampled_from([0.0, 5.0, 50.0, 150.0]), st.sampled_from("xy"))


@st.composite
def cases(draw):
    """Any case that gateways can come to: made as they make them, and merged."""
    clues = draw(st.lists(CLUES, max_size=20))
    case = NOTHING
    for one in clues:
        case = reported(case, one)
    if draw(st.booleans()):
        case = merged(case, Case(out=draw(MARKS)))
    if draw(st.booleans()):
        case = release(case, draw(st.sampled_from([0.0, 60.0, 120.0])), draw(st.sampled_from("xy")))
    for one in draw(st.lists(CLUES, max_size=20)):
        case = reported(case, one)
    return case


@given(cases(), cases(), cases())
def test_cases_come_to_the_same_in_any_order_and_however_often(one, two, three):
    assert merged(one, two) == merged(two, one)
    assert merged(merged(one, two), three) == merged(one, merged(two, three))
    assert merged(one, one) == one
    both = merged(one, two)
    assert merged(both, one) == both
    assert len(both.clues) <= CLUES_KEPT


@given(st.lists(cases(), min_size=4, max_size=4), st.floats(0, 1))
def test_what_is_agreed_never_passes_the_share(found, share):
    """Two gateways that found what they found, and write one after the other."""
    rules = Rules(max_share=share)
    one = agreed({}, dict(zip((A, B), found[:2], strict=True)), PAIR, 200.0, rules)
    other = agreed({}, dict(zip((A, B), found[2:], strict=True)), PAIR, 200.0, rules)
    written = agreed({}, one, PAIR, 200.0, rules)
    rewritten = agreed(written, other, PAIR, 200.0, rules)
    for together in (one, other, written, rewritten):
        assert sum(case.out is not None for case in together.values()) <= share * 2


@given(
    st.dictionaries(st.sampled_from("mno"), st.sets(st.sampled_from("abcdef"), min_size=1)),
    st.permutations("abcdef"),
    st.floats(0, 1),
)
def test_taking_out_while_there_is_room_never_passes_the_share(serving, order, share):
    out = set()
    for name in order:
        mine = {model: names for model, names in serving.items() if name in names}
        if mine and within_share(name, mine, out, share):
            out.add(name)
    assert all(len(out & names) <= share * len(names) for names in serving.values())
