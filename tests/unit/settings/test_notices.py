from __future__ import annotations

from typing import Any

import pytest

from gateway.settings import NoSecrets, Settings, parse
from gateway.settings.explain import explain
from gateway.settings.notices import INACTIVE, INACTIVE_IN_MEMORY
from gateway.settings.schema import entries

BACKENDS = [{"name": "a", "url": "http://h:1"}]
DEFAULTS: dict[str, Any] = {
    "limits.when_store_fails": "refuse",
    "limits.timeout": "100ms",
    "limits.lease": "30s",
}


def notices_of(*paths: str) -> tuple[str, ...]:
    written: dict[str, Any] = {"backends": BACKENDS}
    for path in paths:
        section, key = path.split(".")
        written.setdefault(section, {})[key] = DEFAULTS[path]
    return parse(written, NoSecrets()).notices


EVERY = {**INACTIVE_IN_MEMORY, **INACTIVE}


@pytest.mark.parametrize("path", EVERY)
def test_a_written_setting_without_effect_is_told_even_at_its_default(path: str) -> None:
    assert notices_of(path) == (f"{path} is not active: {EVERY[path]}",)


def test_a_store_that_is_shared_can_fail_so_its_settings_are_active() -> None:
    limits = {"store": "redis://h", "when_store_fails": "allow", "timeout": "1s", "lease": "9s"}
    assert parse({"backends": BACKENDS, "limits": limits}, NoSecrets()).notices == ()


def test_policies_that_no_tenant_is_under_limit_nothing() -> None:
    policies = {"default": {"concurrent": 1}, "spare": {"concurrent": 2}}
    assert parse({"backends": BACKENDS, "policies": policies}, NoSecrets()).notices == (
        "policies.spare is not active: no tenant is under it",
    )


TWO = [{"id": name, "key_sha256": [digit * 64]} for name, digit in (("a", "1"), ("b", "2"))]
REDIS = {"store": "redis://h"}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({}, "one tenant"),
        ({"tenants": TWO}, None),
        ({"tenants": TWO, "workers": 2, "limits": REDIS}, "each of the workers"),
    ],
)
def test_fingerprints_need_another_tenant_and_see_one_process(
    more: dict[str, Any], word: str | None
) -> None:
    written = {"backends": BACKENDS, "integrity": {"fingerprints": {}}, **more}
    told = parse(written, NoSecrets()).notices
    assert len(told) == (word is not None)
    assert word is None or word in told[0]


def test_defaults_that_are_not_written_are_not_told() -> None:
    assert notices_of() == ()


def test_all_at_once_in_order() -> None:
    assert [line.split()[0] for line in notices_of(*reversed(EVERY))] == list(EVERY)


def test_a_marker_that_nobody_else_could_see_is_told() -> None:
    integrity = {"sentinel": {}}
    one = parse({"backends": BACKENDS, "integrity": integrity}, NoSecrets())
    assert [line.split()[0] for line in one.notices] == ["integrity.sentinel"]

    keys = [{"id": name, "key_sha256": [name * 64]} for name in "ab"]
    two = parse({"backends": BACKENDS, "integrity": integrity, "tenants": keys}, NoSecrets())
    assert two.notices == ()


def test_null_is_as_good_as_not_written() -> None:
    written = {"backends": BACKENDS, "integrity": {"sentinel": None}}
    assert parse(written, NoSecrets()).notices == ()


def test_only_known_settings_are_listed() -> None:
    assert set(EVERY) <= {entry.path for entry in entries(Settings)}


def test_settings_of_affinity_do_nothing_under_another_policy() -> None:
    routing = {"load_factor": 1.5, "session": "user"}
    for policy, told in (("least_tokens", 2), ("affinity", 0)):
        written = {"backends": BACKENDS, "routing": {**routing, "policy": policy}}
        notices = parse(written, NoSecrets()).notices
        assert len(notices) == told
        assert all(line.startswith("routing.") for line in notices)


SHARED_SECRET = {"secret": "a-secret-of-sixteen"}
MEMORY = {"store": "memory"}


@pytest.mark.parametrize(
    ("integrity", "limits", "said"),
    [
        ({"shared": {"every": "2s"}}, {}, "no store to share through"),
        ({"fingerprints": {"shared": True}}, {}, "no store to share through"),
        ({"shared": {"every": "2s"}}, REDIS, "only the workers of one gateway share"),
        ({"fingerprints": {"shared": True}}, REDIS, "only the workers of one gateway share"),
        ({"shared": {"every": "2s"}, **SHARED_SECRET}, REDIS, ""),
        ({"fingerprints": {"shared": True}, **SHARED_SECRET}, REDIS, ""),
        ({"shared": MEMORY}, REDIS, ""),  # as was asked
        ({}, REDIS, ""),
    ],
)
def test_what_is_not_shared_though_it_was_asked_is_said(
    integrity: dict[str, Any], limits: dict[str, Any], said: str
) -> None:
    written = {"backends": BACKENDS, "integrity": integrity, "tenants": TWO}
    told = " ".join(parse(written | ({"limits": limits} if limits else {}), NoSecrets()).notices)
    assert said in told
    assert bool(told) == bool(said)


@pytest.mark.parametrize(
    ("integrity", "store"),
    [
        ({}, "redis://127.0.0.1:6379"),
        ({"shared": {"store": "redis://:planted@10.0.0.6:6379/2"}}, "redis://10.0.0.6:6379/2"),
        ({"shared": MEMORY}, "memory"),
    ],
)
def test_integrity_state_goes_where_quotas_are_unless_another_store_is_written(
    integrity: dict[str, Any], store: str
) -> None:
    limits = {"store": "redis://127.0.0.1"}
    settings = parse({"backends": BACKENDS, "limits": limits, "integrity": integrity}, NoSecrets())
    assert str(settings.shared_store) == store
    told = explain(settings)
    assert ("shared by this gateway's workers through" in told) == (store != "memory")
    assert "planted" not in told
