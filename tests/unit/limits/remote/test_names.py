from __future__ import annotations

import itertools

from redis.crc import key_slot

from gateway.limits.base import LimitKey
from gateway.limits.remote.names import lease_key, probe_key, quota_key

AWKWARD = ("a", "A", "a:b", "b", "a b", "{a}", "}", "{", "%", "%7B", "", "é", "e\u0301", "\ud800")


def test_row_40_distinct_quotas_have_distinct_keys() -> None:
    keys = [
        LimitKey(tenant, name, model)
        for tenant, name in itertools.product(AWKWARD, AWKWARD)
        for model in (None, *AWKWARD)
    ]
    assert len({quota_key(key) for key in keys}) == len(keys)


def test_row_40_the_pairs_that_a_separator_would_confuse() -> None:
    assert quota_key(LimitKey("a:b", "c")) != quota_key(LimitKey("a", "b:c"))
    assert quota_key(LimitKey("a", "b", "c")) != quota_key(LimitKey("a", "b:c"))


def test_row_25_all_keys_of_a_tenant_share_a_hash_slot() -> None:
    for tenant in AWKWARD:
        keys = [
            *(quota_key(LimitKey(tenant, name, "m")) for name in AWKWARD),
            *(quota_key(LimitKey(tenant, name)) for name in AWKWARD),
            lease_key(tenant, "0123"),
            probe_key(tenant),
        ]
        assert len({key_slot(key.encode()) for key in keys}) == 1, tenant


def test_tenants_are_spread() -> None:
    slots = {key_slot(quota_key(LimitKey(f"tenant-{n}", "q")).encode()) for n in range(200)}
    assert len(slots) > 190


def test_keys_are_plain_ascii() -> None:
    assert quota_key(LimitKey("t é", "tokens per minute", "glm-*")) == (
        "poolgate:{t%20%C3%A9}:q:tokens%20per%20minute:glm-%2A"
    )
    assert lease_key("t", "ab") == "poolgate:{t}:lease:ab"
