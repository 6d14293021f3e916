"""What passed lately: sums over a minute, first-token times by length, and both of several."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.live import (
    KEPT,
    SHOWN,
    WINDOW,
    Counts,
    FirstToken,
    FirstTokens,
    Window,
    counts_of_all,
    first_tokens,
    first_tokens_of_all,
    traffic,
    traffic_of_all,
)

STATUSES = st.sampled_from([200, 400, 401, 429, 500, 502])
ENDED = st.tuples(
    st.floats(0, 30), st.sampled_from("abc"), STATUSES, st.integers(0, 9), st.integers(0, 9)
)


def played(steps):
    """A window after these exchanges, and them with their times: each waited for so long."""
    window, told, now = Window(), [], 0.0
    for wait, *exchange in steps:
        now += wait
        window.add(now, *exchange)
        told.append((now, *exchange))
    return window, told, now


@given(st.lists(ENDED, max_size=40), st.floats(0, 90))
def test_the_window_sums_what_ended_in_its_seconds(steps, wait):
    window, told, now = played(steps)
    now += wait
    wanted = {}
    for at, tenant, status, sent, got in told:
        if int(at) > int(now) - WINDOW:
            wanted.setdefault(tenant, Counts()).add(status, sent, got)
    assert window.sums(now) == wanted
    every = [astuple(Counts()), *(astuple(counts) for counts in wanted.values())]
    assert astuple(window.total(now)) == tuple(map(sum, zip(*every, strict=True)))


@given(st.lists(ENDED, max_size=60))
def test_the_window_holds_no_more_than_its_seconds(steps):
    window, _, now = played(steps)
    window.sums(now)
    assert len(window._seconds) <= WINDOW
    window.sums(now + WINDOW + 1)
    assert not window._seconds
    assert not window._sums


def test_what_is_counted_by_its_status():
    counts = Counts()
    for status in (200, 400, 400, 401, 429, 500, 502, 504):
        counts.add(status, 3, 2)
    assert astuple(counts) == (8, 24, 16, 2, 1, 3)


def test_short_prompts_push_no_long_one_out_nor_honest_ones_a_suspect():
    kept = FirstTokens()
    kept.add("a", FirstToken(0.0, 50_000, 2.0))
    kept.add("a", FirstToken(0.0, 60_000, 0.1, suspect=True))
    for at in range(1, 1000):
        kept.add("a", FirstToken(at, 100, 0.05))
    for at in range(1, KEPT):
        kept.add("a", FirstToken(at, 40_000, 2.0))
    lengths = [(told.tokens, told.suspect) for told in kept.of("a")]
    assert lengths.count((100, False)) == KEPT
    assert (50_000, False) in lengths
    assert (60_000, True) in lengths
    assert next(told.at for told in kept.of("a")) == 1000 - KEPT  # the latest are kept
    assert kept.of("b") == []


def test_backends_that_are_gone_are_forgotten():
    kept = FirstTokens()
    for backend in "ab":
        kept.add(backend, FirstToken(0.0, 100, 0.1))
    kept.keep_only(["b", "c"])
    assert (kept.of("a"), len(kept.of("b"))) == ([], 1)


def crowd(calls):
    """A window in which tenant n made ``calls[n]`` calls, at one moment."""
    window = Window()
    for tenant, number in enumerate(calls):
        for _ in range(number):
            window.add(1.0, f"t{tenant:03}", 200, 0, 0)
    return window


def test_those_who_call_most_come_first_and_the_rest_is_in_the_total():
    window = crowd(range(1, SHOWN + 21))
    told = traffic(window, {"waits": 7}, 1.0, uptime=12.34)
    assert len(told["tenants"]) == SHOWN
    assert told["tenants"][0]["id"] == f"t{SHOWN + 19:03}"
    assert told["left_out"] == 21
    assert told["total"]["requests"] == sum(range(SHOWN + 21))
    assert told["total"]["in_flight"] == 7
    assert told["seconds"] == 12.3
    assert traffic(window, {}, 1.0, uptime=1e6)["seconds"] == WINDOW


def test_a_tenant_whose_first_request_still_runs_is_shown():
    [tenant] = traffic(Window(), {"a": 2}, 1.0, uptime=100)["tenants"]
    assert (tenant["id"], tenant["requests"], tenant["in_flight"]) == ("a", 0, 2)


@given(st.lists(st.tuples(st.integers(0, 3), ENDED), max_size=40))
def test_several_processes_tell_what_one_would(steps):
    one, several, now = Window(), [Window() for _ in range(4)], 0.0
    for process, (wait, *exchange) in steps:
        now += wait
        for window in (one, several[process]):
            window.add(now, *exchange)
    parts = [traffic(window, {"a": 1}, now, 99.0) for window in several]
    assert traffic_of_all(parts) == traffic(one, {"a": 4}, now, 99.0)


def test_of_no_process_nothing_is_told():
    told = traffic_of_all([])
    assert (told["tenants"], told["left_out"]) == ([], 0)
    assert set(told["total"].values()) == {0}


def test_tenants_left_out_everywhere_are_not_counted_twice():
    calls = range(SHOWN + 5, 0, -1)
    parts = [traffic(crowd(calls), {}, 1.0, 60.0)] * 3
    told = traffic_of_all(parts)
    assert told["left_out"] == 5
    assert told["total"]["requests"] == 3 * sum(calls)


def test_first_tokens_are_told_with_their_age():
    told = [FirstToken(10.0, 100, 0.0123456, suspect=True)]
    assert first_tokens(told, 12.5) == [[100, 0.01235, True, 2.5]]


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_of_several_processes_the_latest_are_kept(processes):
    parts = [
        [[100 + n, 0.1, False, float(n * processes + p)] for n in range(KEPT)]
        for p in range(processes)
    ]
    told = first_tokens_of_all(parts)
    assert sorted(row[3] for row in told) == [float(n) for n in range(KEPT)]


def test_checks_are_summed_by_verdict():
    parts = [{"latency": {"ok": 1, "leak": 0}}, {"latency": {"ok": 2}, "binding": {"leak": 3}}, {}]
    assert counts_of_all(parts) == {"latency": {"ok": 3, "leak": 0}, "binding": {"leak": 3}}
