"""Where a backend stands after what was found: who is believed, and who may be taken out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.quarantine import (
    CLUES_KEPT,
    Clue,
    Rules,
    Standing,
    State,
    at,
    released,
    reported,
    within_share,
)
from gateway.types import Evidence

RULES = Rules(floor=100, window=60.0)
CERTAIN, STRONG, WEAK = Evidence.CERTAIN, Evidence.STRONG, Evidence.WEAK


def clue(evidence=STRONG, check="latency", tenant="a", when=0.0, forgeable=False):
    return Clue(when, check, tenant, evidence, forgeable)


def after(*clues, room=True, rules=RULES):
    standing = Standing()
    for one in clues:
        standing = reported(standing, one, rules, may_take_out=room)
    return standing


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
    assert at(after(clue()), 59.9, RULES).state is State.SUSPECT
    assert at(after(clue()), 60.0, RULES).state is State.SERVING
    assert at(after(clue(CERTAIN)), 1e9, RULES).state is State.QUARANTINED


def test_the_cap_leaves_it_suspect_and_says_so():
    standing = after(clue(CERTAIN), room=False)
    assert (standing.state, standing.capped) == (State.SUSPECT, True)
    assert not after(clue(), room=False).capped


def test_the_cap_says_so_of_one_that_was_suspect_before():
    assert after(clue(), clue(CERTAIN, when=1.0), room=False).capped


def test_a_release_forgets_what_was_held_against_it():
    standing = released(5.0, "operator")
    assert (standing.state, standing.clues) == (State.SERVING, ())
    again = reported(standing, clue(tenant="b", when=6.0), RULES, may_take_out=True)
    assert again.state is State.SUSPECT


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
    standing = Standing()
    for one in sorted(clues, key=lambda each: each.at):
        before, standing = standing, reported(standing, one, RULES, may_take_out=room)
        assert len(standing.clues) <= CLUES_KEPT
        if before.state is State.QUARANTINED:
            assert standing.state is State.QUARANTINED  # only a release ends it
        if one.evidence is WEAK:
            assert standing == at(before, one.at, RULES)
        if standing.state is State.QUARANTINED and before.state is not State.QUARANTINED:
            counted = [c for c in clues if c.evidence is not WEAK and one.at - c.at < RULES.window]
            alone = any(c.evidence is CERTAIN and not c.forgeable for c in counted)
            assert alone or len({(c.check, c.tenant) for c in counted}) > 1
    if not room:
        assert standing.state is not State.QUARANTINED


@given(st.lists(CLUES.filter(lambda one: one.tenant == "a"), max_size=30))
def test_one_tenant_with_one_forgeable_check_never_takes_a_backend_out(clues):
    framing = [
        clue(one.evidence, "sentinel", "a", one.at, True)
        for one in sorted(clues, key=lambda each: each.at)
    ]
    assert after(*framing).state is not State.QUARANTINED


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
