"""Scrapes, statuses and incidents of several processes as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest

from gateway.edge.metrics import Metrics
from gateway.supervise import merge
from gateway.supervise.merge import GAUGES


def scrape(requests=(), seconds=(), **gauges):
    """A process's series: a counter by tenant, a histogram, gauges of one backend."""
    registry = CollectorRegistry()
    counter = Counter("poolgate_requests", "Requests", ["tenant"], registry=registry)
    for tenant in requests:
        counter.labels(tenant).inc()
    histogram = Histogram("poolgate_count_seconds", "Time", buckets=(1, 2), registry=registry)
    for value in seconds:
        histogram.observe(value)
    for name, value in gauges.items():
        Gauge(name, "A gauge", ["backend"], registry=registry).labels("a").set(value)
    return merge.packed(registry.collect())


def samples(*series, ended=()):
    families = merge.merged([merge.outlasting(merge.read(one)) for one in ended])
    text = merge.exposition(merge.merged([families, *map(merge.read, series)])).decode()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#") and "_created" not in line
    }


def test_counters_and_histograms_are_summed_by_their_labels():
    found = samples(scrape("aab", [0.5, 5]), scrape("bc", [1.5]))
    assert found == {
        'poolgate_requests_total{tenant="a"}': 2,
        'poolgate_requests_total{tenant="b"}': 2,
        'poolgate_requests_total{tenant="c"}': 1,
        'poolgate_count_seconds_bucket{le="1.0"}': 1,
        'poolgate_count_seconds_bucket{le="2.0"}': 2,
        'poolgate_count_seconds_bucket{le="+Inf"}': 3,
        "poolgate_count_seconds_count": 3,
        "poolgate_count_seconds_sum": 7,
    }


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("poolgate_backend_state", (1, -1, 0), -1),
        ("poolgate_effective_limit_tokens", (1017, -1), -1),
        ("poolgate_prompt_limit_tokens", (1017, 500), 500),
        ("poolgate_calibration_differences", (0, 3), 3),
        ("poolgate_limit_age_seconds", (1, float("inf")), float("inf")),
        ("poolgate_limiter_store_up", (1, 0), 0),
        ("poolgate_workers", (1, 1), 2),
        ("poolgate_queue_waiting", (3, 4), 7),
    ],
)
def test_of_gauges_the_cautious_one_is_told(name, values, told):
    found = samples(*(scrape(**{name: value}) for value in values))
    assert found[name + '{backend="a"}'] == told


def test_every_gauge_has_a_rule():
    """Decide for a new one what several processes say together."""
    gauges = {family.name for family in Metrics().registry.collect() if family.type == "gauge"}
    assert gauges == set(GAUGES)


def test_a_dead_workers_counters_stay_and_its_gauges_go():
    found = samples(ended=[scrape("a", [1], poolgate_workers=1)])
    assert found['poolgate_requests_total{tenant="a"}'] == 1
    assert found["poolgate_count_seconds_count"] == 1
    assert 'poolgate_workers{backend="a"}' not in found


def test_a_series_began_when_the_first_worker_began_it():
    def began(at):
        family = CounterMetricFamily("poolgate_requests", "Requests", labels=["tenant"])
        family.add_metric(["a"], 1, created=at)
        return [family]

    merged = merge.exposition(merge.merged(map(began, (5.0, 3.0, 4.0)))).decode()
    assert 'poolgate_requests_created{tenant="a"} 3.0' in merged
    assert 'poolgate_requests_total{tenant="a"} 3.0' in merged


def test_one_process_reads_as_before():
    metrics = Metrics()
    text, series = metrics.render().decode(), merge.packed(metrics.registry.collect())
    merged = merge.exposition(merge.merged([merge.read(series)])).decode()
    assert sorted(merged.splitlines()) == sorted(text.splitlines())


LIVES = st.lists(st.lists(st.sampled_from("abc"), max_size=4), min_size=1, max_size=6)


@given(LIVES, st.data())
def test_sums_do_not_depend_on_who_has_died(lives, data):
    texts = [scrape(life) for life in lives]
    dead = data.draw(st.integers(0, len(texts)))
    assert samples(*texts) == samples(*texts[dead:], ended=texts[:dead])


def test_a_label_with_quotes_and_newlines_survives():
    registry = CollectorRegistry()
    Gauge("poolgate_workers", "W", ["worker"], registry=registry).labels('a"\\\nb').set(1)
    series = merge.packed(registry.collect())
    text = generate_latest(registry)
    assert merge.exposition(merge.merged([merge.read(series)])) == text


def status(in_flight, incidents=0, limit=1017):
    return {
        "in_flight": in_flight,
        "tasks": 7 + in_flight,
        "incidents": incidents,
        "backends": [{"name": "a", "in_flight": in_flight, "limit": limit}],
    }


def test_statuses_sum_what_is_in_flight():
    told = merge.status([status(2, 1), status(3)])
    assert (told["in_flight"], told["tasks"], told["incidents"]) == (5, 19, 1)
    assert [(b["name"], b["in_flight"], b["limit"]) for b in told["backends"]] == [("a", 5, 1017)]


def test_statuses_sum_outstanding_work_and_tell_the_worst_ejection():
    each = [status(1), status(2), status(3)]
    states = ("in_service", "ejected", "half_open")
    for number, (one, state) in enumerate(zip(each, states, strict=True)):
        one["backends"][0] |= {
            "load": {"prefilling": 10**number, "decoding": number},
            "ejection": {"state": state, "reason": "connect"},
            "asks_it": state == "half_open",
        }
    for some, worst in ((each, "ejected"), ([each[0], each[2]], "half_open")):
        [backend] = merge.status(some)["backends"]
        assert backend["ejection"]["state"] == worst
        assert backend["asks_it"]
    assert merge.status(each)["backends"][0]["load"] == {"prefilling": 111, "decoding": 3}
    assert not merge.status(each[:2])["backends"][0]["asks_it"]


def test_statuses_sum_what_waits_in_queues():
    """While a reload goes from worker to worker, some may have none."""
    statuses = [status(1), status(1), status(0)]
    for each, waiting in zip(statuses, (3, 4), strict=False):
        each["backends"][0]["queue"] = {"waiting": waiting, "in_flight": 1}
    statuses[2]["backends"][0]["queue"] = None
    [backend] = merge.status(statuses)["backends"]
    assert backend["queue"] == {"waiting": 7, "in_flight": 2}
    [backend] = merge.status(statuses[2:])["backends"]
    assert backend["queue"] is None


def test_statuses_sum_what_each_tenant_has_in_flight():
    statuses = [status(1), status(1), status(0)]
    for each, in_flight in zip(statuses, (3, 4), strict=False):
        shown = [{"id": "t", "in_flight": in_flight, "quotas": []}]
        each["tenants"] = {"shown": shown, "left_out": 1}
    [tenant] = merge.status(statuses)["tenants"]["shown"]
    assert (tenant["id"], tenant["in_flight"]) == ("t", 7)
    assert merge.status(statuses)["tenants"]["left_out"] == 1


def test_of_standings_the_worst_is_told():
    statuses = [status(1), status(1), status(1)]
    for each, state in zip(statuses, ("serving", "quarantined", "suspect"), strict=True):
        each["backends"][0]["standing"] = {"state": state}
    [backend] = merge.status(statuses)["backends"]
    assert backend["standing"] == {"state": "quarantined"}


def test_a_backend_that_only_some_have_yet_is_told_as_the_first_has_it():
    """While a reload goes from worker to worker."""
    other = status(1)
    other["backends"] = [{"name": "b", "in_flight": 1}]
    assert [b["name"] for b in merge.status([status(2), other])["backends"]] == ["a"]
    assert merge.status([]) == {}


def test_incidents_are_the_latest_of_all():
    times = ["2026-11-30T10:00:00+00:00", "2026-11-30T12:00:00+00:00", "2026-11-30T11:00:00+00:00"]
    told = merge.newest_first([{"id": time, "time": time} for time in [*times, times[1]]], 2)
    assert [incident["time"] for incident in told] == [times[1], times[2]]


# --- the page's numbers -------------------------------------------------------------------------


def part(requests, ceiling, answers, **more):
    traffic = {"requests": requests, "input_tokens": 0, "output_tokens": 0, "in_flight": 1}
    traffic |= {"answered_400": 0, "answered_429": 0, "answered_5xx": 0}
    backend = {
        "name": "a",
        "in_flight": 2,
        "standing": {"state": "serving"},
        "first_token": {"ceiling_tokens_per_s": ceiling, "learnt_from": 3, "answers": answers},
    }
    return {
        "in_flight": 2,
        "limits": {"up": True},
        "backends": [backend],
        "traffic": {
            "seconds": 60.0,
            "tenants": [{"id": "t", **traffic}],
            "left_out": 0,
            "total": traffic,
        },
        "checks": {"latency": {"ok": requests}},
    } | more


def test_overviews_are_summed_and_the_lowest_floor_is_told():
    ended = merge.read(ended_checks())
    told = merge.overview(
        [
            part(3, None, []),
            part(4, 900.0, [[50, 0.1, False, 1.0]], limits={"up": False}),
            part(5, 800.0, [[60, 0.1, True, 2.0]]),
        ],
        ended,
    )
    assert told["in_flight"] == 6
    assert told["limits"] == {"up": False}
    assert told["traffic"]["total"]["requests"] == 12
    assert [(one["id"], one["requests"]) for one in told["traffic"]["tenants"]] == [("t", 12)]
    assert told["checks"]["latency"] == {"ok": 12 + 7}
    [backend] = told["backends"]
    assert backend["in_flight"] == 6
    assert backend["first_token"] == {
        "ceiling_tokens_per_s": 900.0,
        "learnt_from": 3,
        "answers": [[50, 0.1, False, 1.0], [60, 0.1, True, 2.0]],
    }


def test_while_no_worker_answers_what_ended_ones_checked_is_told():
    told = merge.overview([], merge.read(ended_checks()))
    assert told["backends"] == []
    assert told["checks"] == {"latency": {"ok": 7}}


def ended_checks():
    registry = CollectorRegistry()
    checks = Counter("poolgate_checks", "Checks", ["check", "verdict"], registry=registry)
    checks.labels("latency", "ok").inc(7)
    return merge.packed(registry.collect())
