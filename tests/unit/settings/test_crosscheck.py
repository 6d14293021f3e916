from __future__ import annotations

from typing import Any

import pytest

from gateway.settings.crosscheck import cross_problems


def paths(written: dict[str, Any]) -> list[str]:
    return [problem.path for problem in cross_problems(written)]


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"backends": None, "tenants": 5, "policies": []},
        {"backends": "ab", "tenants": [None, 1, "x"], "listen": 1, "admin": None},
        {"tenants": [{"id": 1, "key_sha256": 5, "policy": []}, {"id": [], "key_sha256": [None]}]},
        {"backends": [{"name": None}, {"name": None}]},
    ],
)
def test_wrong_types_are_left_to_the_models(written: dict[str, Any]) -> None:
    assert paths(written) == []


def test_every_repetition_is_told_with_where_the_first_is() -> None:
    problems = list(cross_problems({"backends": [{"name": "a"}, {"name": "b"}, {"name": "a"}] * 2}))
    assert [problem.path for problem in problems] == [f"backends[{i}].name" for i in (2, 3, 4, 5)]
    assert problems[2].message == "'b' is already the name of backends[1]"


def test_names_that_differ_in_case_are_different() -> None:
    assert paths({"backends": [{"name": "a"}, {"name": "A"}]}) == []


@pytest.mark.parametrize(
    ("listen", "admin", "collide"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "[::]:1", True),
        ("127.0.0.1:1", "10.0.0.1:1", False),
        ("0.0.0.0:1", "127.0.0.1:2", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_ports_of_the_planes(listen: str, admin: str, collide: bool) -> None:
    assert paths({"listen": listen, "admin": admin}) == ["admin"] * collide


def test_a_port_left_at_its_default_collides_too() -> None:
    assert paths({"admin": "127.0.0.1:8080"}) == ["admin"]


def test_a_tenant_may_list_its_own_key_only_once_but_that_is_no_clash_between_tenants() -> None:
    digest = "a" * 64
    assert paths({"tenants": [{"key_sha256": [digest, digest]}]}) == []


@pytest.mark.parametrize("ending", [False, True])
def test_a_key_of_two_tenants_is_found_however_it_is_written(ending: bool) -> None:
    digest = "a" * 64
    second = {"sha256": digest.upper(), "not_after": "2026-12-31T00:00:00Z"} if ending else digest
    found = paths({"tenants": [{"key_sha256": [digest]}, {"key_sha256": ["b" * 64, second]}]})
    assert found == ["tenants[1].key_sha256[1]"]


def per_model(pattern: str, served: list[str], allowed: list[str] | None = None) -> list[str]:
    policy: dict[str, Any] = {"per_model": {pattern: {"concurrent": 1}}}
    if allowed is not None:
        policy["models"] = allowed
    written = {"backends": [{"name": "a", "models": served}], "policies": {"p": policy}}
    return [str(problem) for problem in cross_problems(written)]


def test_a_quota_of_models_that_nothing_serves_is_a_fault() -> None:
    assert per_model("glm-*", ["qwen3-*", "*-5"]) == []
    assert per_model("glm-*", ["qwen3-*", "llama"]) == [
        "policies.p.per_model.glm-*: no backend serves a model that it covers"
    ]


def test_a_quota_of_models_that_the_policy_does_not_allow_is_a_fault() -> None:
    assert per_model("glm-*", ["*"], ["glm-5"]) == []
    assert per_model("glm-*", ["*"], ["qwen3"]) == [
        "policies.p.per_model.glm-*: the policy's models name none that it covers"
    ]


@pytest.mark.parametrize("policy", [None, {"per_model": 5}, {"per_model": {3: {}}, "models": 7}])
def test_quotas_by_model_of_wrong_types_are_left_to_the_models(policy: Any) -> None:
    assert paths({"policies": {"p": policy}}) == []
