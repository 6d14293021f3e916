"""Routers: every worker found, none dropped, none hidden (row 59)."""

import pytest

from engine_data import answered, composed
from gateway.engines import detect
from gateway.engines.base import Answer, Probe, Router, Unreadable, WorkerRef


def told(name, answers):
    router = detect.detect(answers)
    assert isinstance(router, Router)
    assert router.name == name
    return router.workers(answers)


def test_the_rust_routers_workers_ranks_joined_and_the_ailing_kept():
    assert told("sgl_gateway", composed("sgl_gateway")) == (
        WorkerRef("http://10.0.0.1:30000", "prefill"),
        WorkerRef("http://10.0.0.2:30000", "decode"),  # is_healthy false
    )


def test_a_router_that_hides_its_workers_is_not_taken_for_the_worker_it_proxies_to():
    found = told("sgl_gateway", composed("sgl_gateway_closed"))
    assert isinstance(found, Unreadable)
    assert "401" in found.reason
    assert "workers" in found.reason


@pytest.mark.parametrize(
    "workers",
    [
        [],
        [None],
        [{"worker_type": "decode"}],
        [{"url": None}],
        [{"url": "grpc://10.0.0.1:30000"}],
        [{"url": "10.0.0.1:30000"}],
        [{"url": "http://"}],
        [{"url": "http://a:99999"}],
        [{"url": "http://[::1"}],
        [{"url": 7}],
        [{"url": "http://10.0.0.1:30000"}, {"url": "file:///etc/passwd"}],
    ],
)
def test_one_unusable_entry_makes_the_list_unreadable(workers):
    assert isinstance(told("sgl_gateway", answered(workers={"workers": workers})), Unreadable)


def test_a_list_shorter_than_its_own_total_is_unreadable():
    listing = {"workers": [{"url": "http://10.0.0.1:30000"}], "total": 2}
    assert isinstance(told("sgl_gateway", answered(workers=listing)), Unreadable)


def test_the_old_router_tells_addresses():
    assert told("old_sglang_router", composed("old_sglang_router")) == (
        WorkerRef("http://10.0.0.1:30000"),
        WorkerRef("http://10.0.0.2:30000"),
    )


def test_lmdeploys_proxy_tells_nodes_and_roles():
    assert told("lmdeploy_proxy", composed("lmdeploy_proxy")) == (
        WorkerRef("http://10.0.0.1:23333", "prefill"),
        WorkerRef("http://10.0.0.2:23333", "decode"),
    )


def test_production_stack_asks_the_operator_for_its_workers():
    found = told("production_stack", composed("production_stack"))
    assert isinstance(found, Unreadable)
    assert "workers" in found.reason


def test_a_worker_that_refuses_everything_is_no_router():
    closed = {probe: Answer(401, b"{}") for probe in detect.detection_probes()}
    assert detect.detect(closed) is None


def test_workers_read_without_an_answer_says_so():
    for router in detect.ROUTERS:
        assert isinstance(router.workers({}), Unreadable)
        assert not router.recognises({Probe("GET", "/workers"): Answer(404, b"{}")})
