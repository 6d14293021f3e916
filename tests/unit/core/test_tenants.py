from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.core import tenants
from gateway.core.tenants import (
    Key,
    Tenant,
    TenantDirectory,
    allowed,
    directory,
    key_digest,
    matches,
    well_formed,
)
from gateway.errors import Kind, Rejection
from gateway.settings import NoSecrets, Policy, Settings, parse

KEY = "pgk_LEAKMARK-studio-a"
STUDIO = Tenant("studio-a", Policy())
KEYED = TenantDirectory({sha256(KEY.encode()).hexdigest(): Key(STUDIO)})
NOW = datetime(2026, 12, 1, tzinfo=UTC)
OPEN = TenantDirectory({}, Tenant("default", Policy()))

VALID = {
    "bearer": [("Authorization", f"Bearer {KEY}")],
    "scheme_in_lower_case": [("authorization", f"bearer {KEY}")],
    "scheme_in_upper_case": [("AUTHORIZATION", f"BEARER {KEY}")],
    "two_spaces": [("Authorization", f"BEARER  {KEY}")],
    "space_around": [("Authorization", f" Bearer {KEY} ")],
    "x_api_key": [("X-Api-Key", KEY)],
    "both_and_equal": [("x-api-key", KEY), ("Authorization", f"Bearer {KEY}")],
    "among_others": [("Host", "h"), ("Cookie", "a"), ("x-api-key", KEY), ("user", "b")],
}


def identify(headers: list[tuple[str, str]], known: TenantDirectory, now: datetime) -> Tenant:
    return tenants.identify(CIMultiDict(headers), known, now)


INVALID = {
    "none": [],
    "unknown": [("Authorization", "Bearer pgk_other")],
    "unknown_x_api_key": [("x-api-key", "pgk_other")],
    "key_in_other_case": [("x-api-key", KEY.upper())],
    "key_with_more": [("x-api-key", KEY + "x")],
    "its_hash": [("x-api-key", key_digest(KEY))],
    "scheme_alone": [("Authorization", "Bearer")],
    "empty_token": [("Authorization", "Bearer ")],
    "empty_header": [("Authorization", "")],
    "empty_x_api_key": [("x-api-key", "")],
    "no_scheme": [("Authorization", KEY)],
    "no_space": [("Authorization", f"Bearer{KEY}")],
    "tab": [("Authorization", f"Bearer\t{KEY}")],
    "basic": [("Authorization", f"Basic {KEY}")],
    "basic_beside_a_valid_key": [("Authorization", "Basic YTpi"), ("x-api-key", KEY)],
    "comma_list": [("Authorization", f"Bearer {KEY},Bearer pgk_other")],
    "comma_list_without_space": [("x-api-key", f"{KEY},{KEY}")],
    "two_authorizations": [("Authorization", f"Bearer {KEY}")] * 2,
    "two_x_api_keys": [("x-api-key", KEY)] * 2,
    "different_in_both": [("Authorization", f"Bearer {KEY}"), ("x-api-key", "pgk_other")],
    "empty_in_one": [("Authorization", f"Bearer {KEY}"), ("x-api-key", "")],
    "empty_in_both": [("Authorization", "Bearer "), ("x-api-key", "")],
    "not_ascii": [("Authorization", "Bearer schlüssel")],
    "surrogates": [("Authorization", "Bearer \udcff")],
    "nul": [("Authorization", f"Bearer {KEY}\x00")],
    "line_break": [("Authorization", f"Bearer {KEY}\n")],
    "huge": [("Authorization", "Bearer " + "k" * 65536)],
    "huge_x_api_key": [("x-api-key", "k" * 65536)],
    "other_header": [("api-key", KEY), ("X_API_KEY", KEY), ("x-tenant-id", "studio-a")],
}


@pytest.mark.parametrize("case", VALID)
def test_row_66_a_valid_key_is_its_tenants(case: str) -> None:
    assert identify(VALID[case], KEYED, NOW) is STUDIO


@pytest.mark.parametrize("case", INVALID)
def test_row_66_anything_else_is_unauthorized(case: str) -> None:
    with pytest.raises(Rejection) as caught:
        identify(INVALID[case], KEYED, NOW)
    assert caught.value.kind is Kind.UNAUTHORIZED


def test_row_66_what_is_looked_up_is_a_hash_and_no_key_is_kept() -> None:
    asked = []

    class Spied(dict[str, Key]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.append(key)
            return super().get(key, default)

    spied = Spied(KEYED.by_digest)
    assert identify(VALID["bearer"], TenantDirectory(spied), NOW) is STUDIO
    assert asked == [sha256(KEY.encode()).hexdigest()]
    assert KEY not in repr(spied)


@pytest.mark.parametrize("case", INVALID)
def test_row_65_no_refusal_repeats_a_key(case: str) -> None:
    with pytest.raises(Rejection) as caught:
        identify(INVALID[case], KEYED, NOW)
    assert "LEAKMARK" not in str(caught.value)
    assert "studio" not in str(caught.value)


@pytest.mark.parametrize("headers", [*VALID.values(), *INVALID.values()])
def test_an_open_tenant_takes_any_or_no_key(headers: list[tuple[str, str]]) -> None:
    assert identify(headers, OPEN, NOW).id == "default"


def test_a_directory_without_anyone_admits_no_one() -> None:
    with pytest.raises(Rejection):
        identify(VALID["bearer"], TenantDirectory({}), NOW)


@given(st.lists(st.tuples(st.sampled_from(["Authorization", "x-api-key"]), st.text()), max_size=3))
def test_whatever_the_headers_hold_the_answer_is_a_refusal(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(Rejection):
        identify(headers, KEYED, NOW)


def test_the_directory_of_a_configuration() -> None:
    one, two, three = (key_digest(key) for key in ("k1", "k2", "k3"))
    settings = parse(
        {
            "backends": [{"name": "a", "url": "http://h"}],
            "tenants": [
                {"id": "a", "key_sha256": [one.upper(), two], "policy": "p"},
                {"id": "b", "key_sha256": [three]},
            ],
            "policies": {"p": {"concurrent": 2}},
        },
        NoSecrets(),
    )
    found = directory(settings)
    assert found.open_tenant is None
    assert [identify([("x-api-key", key)], found, NOW).id for key in ("k1", "k2", "k3")] == [*"aab"]
    assert identify([("x-api-key", "k2")], found, NOW).policy.concurrent == 2
    assert identify([("x-api-key", "k3")], found, NOW).policy == Policy()


def keyed_from_to(not_before: datetime | None, not_after: datetime | None) -> TenantDirectory:
    return TenantDirectory({key_digest(KEY): Key(STUDIO, not_before, not_after)})


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))])
def test_a_key_is_good_from_its_beginning_to_its_end(zone: timezone) -> None:
    start, end = NOW.astimezone(zone), (NOW + timedelta(days=7)).astimezone(zone)
    keys = keyed_from_to(start, end)
    tick = timedelta(microseconds=1)
    for now in (NOW, NOW + timedelta(days=3), NOW + timedelta(days=7)):
        assert identify(VALID["bearer"], keys, now) is STUDIO
    for now, why in ((NOW - tick, "not valid yet"), (end + tick, "has expired")):
        with pytest.raises(Rejection, match=why) as caught:
            identify(VALID["bearer"], keys, now)
        assert caught.value.kind is Kind.UNAUTHORIZED
        assert "LEAKMARK" not in caught.value.message


def test_an_end_of_one_key_is_none_of_another() -> None:
    keys = {key_digest("old"): Key(STUDIO, None, NOW), key_digest("new"): Key(STUDIO)}
    later = NOW + timedelta(seconds=1)
    assert identify([("x-api-key", "new")], TenantDirectory(keys), later) is STUDIO
    with pytest.raises(Rejection, match="expired"):
        identify([("x-api-key", "old")], TenantDirectory(keys), later)


def test_expired_keys_open_nothing() -> None:
    old = {"sha256": key_digest("k"), "not_after": "2020-01-01T00:00:00Z"}
    settings = {
        "backends": [{"name": "a", "url": "http://h"}],
        "tenants": [{"id": "a", "key_sha256": [old]}],
    }
    found = directory(parse(settings, NoSecrets()))
    assert found.open_tenant is None
    for headers in ([], [("x-api-key", "k")]):
        with pytest.raises(Rejection):
            identify(headers, found, NOW)


def test_everyone_in_a_directory_once() -> None:
    keys = {key_digest(name): Key(STUDIO) for name in ("k1", "k2")}
    assert list(TenantDirectory(keys).tenants()) == [STUDIO]
    assert [tenant.id for tenant in OPEN.tenants()] == ["default"]


def test_two_valid_keys_of_different_tenants_are_a_contradiction() -> None:
    both = TenantDirectory({key_digest(k): Key(Tenant(k, Policy())) for k in ("k1", "k2")})
    for one, other in (("k1", "k2"), ("k2", "k1")):
        with pytest.raises(Rejection, match="different keys"):
            identify([("Authorization", f"Bearer {one}"), ("x-api-key", other)], both, NOW)


def test_one_key_anywhere_closes_the_directory() -> None:
    tenants = [{"id": "keyless"}, {"id": "a", "key_sha256": [key_digest("k")]}]
    settings = Settings.model_validate(  # without the rules across parts, which refuse this
        {"backends": [{"name": "a", "url": "http://h"}], "tenants": tenants}
    )
    assert directory(settings).open_tenant is None


def test_the_directory_of_a_configuration_without_keys_is_open() -> None:
    found = directory(parse({"backends": [{"name": "a", "url": "http://h"}]}, NoSecrets()))
    assert found.open_tenant == Tenant("default", Policy())
    assert found.by_digest == {}


@pytest.mark.parametrize(
    ("patterns", "model", "covered"),
    [
        (["*"], "anything/at all", True),
        (["*"], "", True),
        (["glm-*"], "glm-5", True),
        (["glm-*"], "xglm-5", False),
        (["glm-*"], "GLM-5", False),
        (["glm"], "glm-5", False),
        (["a", "b"], "b", True),
        (["org/*-7b"], "org/x-7b", True),
        (["glm-*"], "glm-\n", True),
        ([], "a", False),
    ],
)
def test_which_models_patterns_cover(patterns: list[str], model: str, covered: bool) -> None:
    assert matches(patterns, model) is covered
    if patterns:
        assert allowed(Tenant("t", Policy(models=tuple(patterns))), model) is covered


@pytest.mark.parametrize("key", ["k", "a,b", "pgk_-_~!", "k" * 4096])
def test_keys_that_can_be_sent(key: str) -> None:
    assert well_formed(key)


@pytest.mark.parametrize("key", ["", " ", "a b", "a\n", "é", "k" * 4097, "\x7f", "\x00"])
def test_keys_that_cannot(key: str) -> None:
    assert not well_formed(key)
