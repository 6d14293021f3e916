"""The admin plane of all workers."""

from __future__ import annotations

import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.supervise.admin import Admin
from gateway.supervise.ledger import Ledger
from supervise_stubs import StubWorker, slots

READY = (200, {"ready": True, "waiting_for": []})
WAITING = (503, {"ready": False, "waiting_for": [{"backend": "a", "reason": "no word"}]})
HUNG = None
STARTING = "starting"
ABSENT = "absent"


def worker(index, readyz):
    if readyz is ABSENT:
        return None
    made = StubWorker(index, **({"readyz": readyz} if isinstance(readyz, tuple) else {}))
    made.up = readyz is not STARTING
    return made


@pytest.fixture
async def admin_of():
    """A client of the admin plane of these workers."""
    clients = []

    async def made(*workers, draining=False):
        places = slots(*workers)
        admin = Admin(places, Ledger(lambda: [w for w in workers if w]))
        admin.draining = draining
        clients.append(TestClient(TestServer(admin.application())))
        await clients[-1].start_server()
        return clients[-1]

    yield made
    for client in clients:
        await client.close()


@pytest.mark.parametrize(
    ("states", "draining", "ready"),
    [
        ([READY] * 4, False, True),
        ([READY] * 4, True, False),
        ([READY, READY, STARTING, ABSENT], False, True),  # half, and the others take no requests
        ([READY, STARTING, ABSENT, ABSENT], False, False),
        ([READY, READY, READY, WAITING], False, False),  # one takes requests and refuses them
        ([READY, READY, HUNG, HUNG], False, True),  # who hangs takes none
        ([HUNG] * 4, False, False),
        ([ABSENT] * 4, False, False),
        ([READY, ABSENT], False, True),
    ],
)
async def test_ready_is_half_of_the_workers_and_every_one_that_takes_requests(
    admin_of, states, draining, ready
):
    client = await admin_of(*map(worker, range(len(states)), states), draining=draining)
    answer = await client.get("/readyz")
    body = await answer.json()
    assert (answer.status, body["ready"]) == ((200, True) if ready else (503, False))
    assert body["processes_ready"] == states.count(READY)
    assert body["waiting_for"] == [
        {"process": index, "backend": "a", "reason": "no word"}
        for index, state in enumerate(states)
        if state is WAITING
    ]
    assert (await client.get("/healthz")).status == 200


async def test_what_is_to_be_done_is_done_by_all_and_the_worst_is_told(admin_of):
    workers = [
        StubWorker(0, **{"backends/a/release": (200, {"released": True})}),
        StubWorker(1, **{"backends/a/release": (409, {"why": "not held"})}),
        StubWorker(2),
    ]
    client = await admin_of(*workers)
    answer = await client.post("/backends/a/release", data=b"{}")
    assert (answer.status, await answer.json()) == (409, {"why": "not held"})
    assert [w.asked for w in workers] == [[("POST", "/backends/a/release", b"{}")]] * 3
    assert (await client.post("/nobody")).status == 503


async def test_a_page_is_the_first_workers_that_answers(admin_of):
    workers = [StubWorker(0), StubWorker(1, page=(200, {"from": 1})), StubWorker(2)]
    client = await admin_of(*workers)
    assert await (await client.get("/page?x=1%26y")).text() == "no worker answers"
    assert await (await client.get("/page")).json() == {"from": 1}
    assert workers[2].asked == [("GET", "/page?x=1%26y", b"")]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
async def test_no_operator_reaches_what_is_the_supervisors(admin_of, method):
    only = StubWorker(0, config=(200, []))
    client = await admin_of(only)
    assert (await client.request(method, "/config", data=b"{}")).status == 405
    assert only.asked == []


async def test_status_sums_and_shows_each_process(admin_of):
    own = {"in_flight": 2, "incidents": 1, "backends": [], "version": "x", "uptime_s": 5}
    starting = StubWorker(1)
    starting.up = False
    client = await admin_of(StubWorker(0, status=(200, own)), starting, None)
    body = json.loads(await (await client.get("/status")).read())
    assert (body["in_flight"], body["incidents"], body["draining"]) == (2, 1, False)
    seen = [(p["process"], p["pid"], p["state"], p["restarts"]) for p in body["processes"]]
    assert seen == [(0, 1000, "up", 0), (1, 1001, "starting", 0), (2, None, "absent", 0)]
    assert [p["status"] for p in body["processes"]] == [own, None, None]


async def test_incidents_are_chosen_by_every_worker_and_told_as_one(admin_of):
    asked = "incidents?kind=binding&limit=2"
    early, middle, late = ({"id": n, "time": f"2026-01-0{n}"} for n in (1, 2, 3))
    workers = [
        StubWorker(0, **{asked: (200, [late, early])}),
        StubWorker(1, **{asked: (200, [late, middle])}),
    ]
    client = await admin_of(*workers)
    answer = await client.get(f"/{asked}")
    assert await answer.json() == [late, middle]


async def test_a_query_that_workers_do_not_understand_is_told(admin_of):
    client = await admin_of(StubWorker(0, **{"incidents?x=1": (400, {"error": "no such filter"})}))
    answer = await client.get("/incidents?x=1")
    assert (answer.status, await answer.json()) == (400, {"error": "no such filter"})
