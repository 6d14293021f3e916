from __future__ import annotations

import hashlib

import pytest

from gateway.limits.base import Charge, Concurrency, LimitKey, Unit, Used
from gateway.limits.gcra import Quota
from gateway.limits.remote import calls
from gateway.limits.remote.calls import MARK_MS, RECORD_MS, Reply

BUCKET = Charge(LimitKey("t", "b"), Unit.TOKENS, Quota(2, 5.0, 4), 3)  # 2.5 s a unit
SHADOW = Charge(LimitKey("t", "c"), Unit.REQUESTS, Quota(1, 1.0, 1), 1, shadow=True)
SLOTS = Charge(LimitKey("t", "s"), Unit.SLOTS, Concurrency(7), 2)
ALL = (BUCKET, SHADOW, SLOTS)


@pytest.mark.parametrize("name", ["reserve", "settle", "renew", "peek"])
def test_each_script_is_known_by_its_digest(name: str) -> None:
    script = calls.script(name)
    assert script.sha == hashlib.sha1(script.source.encode()).hexdigest()
    assert script.source.startswith("-- Before every script.")


def test_reserving_names_all_keys_and_the_most_and_cost_of_each() -> None:
    call = calls.reserve("id", ALL, 30_000)
    assert call.keys == (
        "poolgate:{t}:lease:id",
        "poolgate:{t}:q:b",
        "poolgate:{t}:q:c",
        "poolgate:{t}:q:s",
    )
    assert call.args == (
        *("id", 30_000, RECORD_MS),
        *("bucket", 0, 10, 0, 7, 500_000_000_000),
        *("bucket", 1, 1, 0, 1, 0),
        *("slots", 0, 7, 0, 2, 0),
    )


def test_settling_tells_only_what_changes() -> None:
    call = calls.settle("id", "t", ALL, Used(4, 0), mark=False)
    assert call.keys == ("poolgate:{t}:lease:id", "poolgate:{t}:q:b", "poolgate:{t}:q:s")
    assert call.args == ("id", 0, 0, "charge", 2, 500_000_000_000, 0, "slots", 2, 0)


def test_releasing_gives_the_request_back_too_and_can_leave_a_mark() -> None:
    call = calls.settle("id", "t", ALL, None, mark=True)
    assert call.args == (
        *("id", MARK_MS),
        *(0, "refund", 7, 500_000_000_000),
        *(1, "refund", 1, 0),
        *(0, "slots", 2, 0),
    )


def test_renewing_concerns_slots_alone() -> None:
    call = calls.renew("id", "t", ALL, 9000)
    assert call.keys == ("poolgate:{t}:lease:id", "poolgate:{t}:q:s")
    assert call.args == ("id", 9000, RECORD_MS, 7, 2)


def test_numbers_stay_within_what_a_double_holds() -> None:
    call = calls.settle("id", "t", [BUCKET], Used(10**40, 0), mark=False)
    assert max(arg for arg in call.args if isinstance(arg, int)) < 2**53


def test_replies_are_read_in_picoseconds_and_slots() -> None:
    reply = calls.read([1, 17, 250_000, 3, 2, 5, 4, 0])
    assert reply == Reply(1, 17_250_000_000_000, 3, (2_000_000_000_005, 4_000_000_000_000))
    assert calls.levels_of([BUCKET, SLOTS], reply) == [2_000_000_000_005, 4]


@pytest.mark.parametrize(
    "raw", [[1], [1, 2, 3, 4, 5], [1, 2, 3, b"4"], None, b"OK", "OK", {}, [[1, 2, 3, 4]]]
)
def test_what_is_no_reply(raw: object) -> None:
    assert calls.read(raw) is None
