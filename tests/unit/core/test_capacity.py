"""The limit of a backend out of its workers' words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import capacity as c
from gateway.types import Role, WorkerFacts


def facts(worker="w", limit=100, **more):
    return WorkerFacts(worker=worker, engine="sglang", max_prompt_tokens=limit, **more)


def seen(now=0.0, before=None, complete=True, **workers):
    """A round in which each worker said the limit given, or was silent where that is a str."""
    words = {
        name: c.Silent(word) if isinstance(word, str) else (facts(name, word),)
        for name, word in workers.items()
    }
    return c.observe(before or c.Snapshot(), c.Round(words, complete), now)


def test_the_smallest_worker_rules():
    known = c.capacity(seen(a=681_273, b=284_921, d=1_000_000), c.Rules(), 1.0)
    assert known == c.Known(284_921, "b", Role.REGULAR, 1.0)


def test_the_smallest_dp_rank_rules():
    snapshot = c.observe(c.Snapshot(), c.Round({"a": (facts("a#0", 100), facts("a#1", 60))}), 0.0)
    assert c.capacity(snapshot, c.Rules(), 0.0).tokens == 60


def test_nobody_asked_yet_is_unknown():
    assert isinstance(c.capacity(c.Snapshot(), c.Rules(), 0.0), c.Unknown)


def test_a_worker_that_never_answered_makes_the_limit_unknown():
    answer = c.capacity(seen(a=100, b="connection refused"), c.Rules(), 0.0)
    assert isinstance(answer, c.Unknown)
    assert "b" in answer.reason
    assert "connection refused" in answer.reason


def test_a_silent_worker_keeps_its_word_until_stale():
    snapshot = seen(now=10.0, before=seen(a=100), a="timeout")
    rules = c.Rules(stale_after=60)
    assert c.capacity(snapshot, rules, 60.0) == c.Known(100, "a", Role.REGULAR, 60.0)
    stale = c.capacity(snapshot, rules, 60.1)
    assert isinstance(stale, c.Unknown)
    assert "timeout" in stale.reason


def test_a_lower_limit_applies_at_once_and_a_higher_one_with_its_round():
    first = seen(a=100)
    lower = seen(now=1.0, before=first, a=50)
    assert c.capacity(lower, c.Rules(), 1.0).tokens == 50
    assert c.capacity(seen(now=2.0, before=lower, a=70), c.Rules(), 2.0).tokens == 70


def test_a_router_that_will_not_list_keeps_the_workers_it_had():
    snapshot = seen(now=1.0, before=seen(a=100, b=50), complete=False, a=100)
    assert c.capacity(snapshot, c.Rules(), 1.0).tokens == 50


def test_a_worker_the_router_dropped_no_longer_counts():
    assert c.capacity(seen(now=1.0, before=seen(a=100, b=50), a=100), c.Rules(), 1.0).tokens == 100


def test_configuration_lowers_but_never_raises():
    assert c.capacity(seen(a=100), c.Rules(max_prompt_tokens=40), 0.0).tokens == 40
    assert c.capacity(seen(a=100), c.Rules(max_prompt_tokens=400), 0.0).tokens == 100


def test_configuration_stands_in_where_nothing_is_known():
    known = c.capacity(seen(a="no such endpoint"), c.Rules(max_prompt_tokens=40), 0.0)
    assert known.tokens == 40
    assert known.worker == "configuration"


def test_a_known_smaller_worker_still_rules_over_configuration():
    rules = c.Rules(max_prompt_tokens=400)
    assert c.capacity(seen(a=100, b="silent"), rules, 0.0).tokens == 100


def test_the_margin_is_subtracted_and_never_goes_below_zero():
    assert c.capacity(seen(a=100), c.Rules(margin=10), 0.0).tokens == 90
    assert c.capacity(seen(a=5), c.Rules(margin=10), 0.0).tokens == 0


def test_an_engine_that_truncates_is_unsafe_unless_allowed():
    snapshot = c.observe(
        c.Snapshot(),
        c.Round({"a": (facts("a", 100, truncates="allow_auto_truncate"),), "b": (facts("b"),)}),
        0.0,
    )
    unsafe = c.capacity(snapshot, c.Rules(), 0.0)
    assert isinstance(unsafe, c.Unsafe)
    assert "allow_auto_truncate" in unsafe.reason
    allowed = c.capacity(snapshot, c.Rules(allow_truncating_engine=True), 0.0)
    assert allowed.tokens == 100


def test_a_stated_limit_holds_until_the_engine_is_another_process():  # cases 55, 57
    def round_of(incarnation):
        return c.Round({"a": (facts("a", 40_959, incarnation=incarnation),)})

    snapshot = c.learn(c.observe(c.Snapshot(), round_of("one"), 0.0), 27_119)
    assert c.capacity(snapshot, c.Rules(), 0.0).tokens == 27_119
    assert "27119" in c.contradictions(snapshot)[0]
    again = c.observe(snapshot, round_of("one"), 1.0)
    assert c.capacity(again, c.Rules(), 1.0).tokens == 27_119
    restarted = c.observe(again, round_of("two"), 2.0)
    assert c.capacity(restarted, c.Rules(), 2.0).tokens == 40_959
    assert c.contradictions(restarted) == ()


def test_limits_are_kept_apart_by_model_where_the_engine_tells_them():
    snapshot = c.observe(
        c.Snapshot(),
        c.Round({"a": (facts("a", 4096, models=("small",)), facts("a", 16_384, models=("big",)))}),
        0.0,
    )
    assert c.capacity(snapshot, c.Rules(), 0.0, "big").tokens == 16_384
    assert c.capacity(snapshot, c.Rules(), 0.0, "small").tokens == 4096
    assert c.capacity(snapshot, c.Rules(), 0.0, "other").tokens == 4096


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 10**6) | st.just("silent"), min_size=1),
    st.none() | st.integers(1, 10**6),
)
def test_the_limit_is_never_above_any_word_given(workers, configured):
    answer = c.capacity(seen(**workers), c.Rules(max_prompt_tokens=configured), 0.0)
    words = [word for word in (*workers.values(), configured) if isinstance(word, int)]
    if isinstance(answer, c.Known):
        assert answer.tokens == min(words)
    else:
        assert configured is None
        assert "silent" in workers.values()


@pytest.mark.parametrize("limit", [None])
def test_a_worker_that_answers_without_a_limit_is_unknown(limit):
    answer = c.capacity(seen(a=limit), c.Rules(), 0.0)
    assert isinstance(answer, c.Unknown)
    assert "states no limit" in answer.reason


def test_another_process_is_another_incarnation_a_silence_is_not():
    def of(**more):
        words = {"a": (facts("a", 100, **more),)}
        return c.observe(c.Snapshot(), c.Round(words), 0.0)

    first = of(incarnation="1", version="0.5")
    assert c.incarnations(first) == c.incarnations(of(incarnation="1", version="0.5"))
    assert c.incarnations(first) != c.incarnations(of(incarnation="2", version="0.5"))
    assert c.incarnations(first) != c.incarnations(of(incarnation="1", version="0.6"))
    silent = c.observe(first, c.Round({"a": c.Silent("down")}), 1.0)
    assert c.incarnations(silent) == c.incarnations(first)
    assert c.incarnations(c.Snapshot()) == ()
