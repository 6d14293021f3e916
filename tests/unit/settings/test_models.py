from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from gateway.settings import HostPort, Policy, Quotas, Settings, TenantKey, parse

GOOD = Path(__file__).parents[2] / "data/config/good"
BACKEND = {"name": "a", "url": "http://h:1"}


class Secrets:
    def env(self, name: str) -> str | None:
        return f"the-value-of-{name}"

    def file(self, path: str) -> str:
        return f"the-text-of-{path}\r\n"


def settings(**sections: Any) -> Settings:
    return parse({"backends": [BACKEND], **sections}, Secrets())


def test_every_key_of_the_contract_parses() -> None:
    parsed = parse((GOOD / "contract.yaml").read_text(), Secrets())
    (backend,) = parsed.backends
    assert backend.api_key == SecretStr("the-value-of-ENGINE_KEY")
    assert (backend.limit.refresh, backend.limit.stale_after) == (10.0, 120.0)
    assert parsed.policies["standard"].max_prompt_tokens == 200_000
    assert parsed.limits.timeout == 0.1
    assert parsed.integrity.fingerprints is not None
    assert parsed.integrity.fingerprints.learning == 86400.0


def test_every_key_of_this_version_takes_another_value_than_its_default() -> None:
    written = parse((GOOD / "all-of-this-version.yaml").read_text(), Secrets())
    assert written.notices == ()
    assert written.listen == HostPort("::1", 8081)
    assert written.admin == HostPort("localhost", 9091)
    (backend,) = written.backends
    assert backend.url == "https://engine.example:8443/prefix"
    assert backend.workers == ("http://10.0.0.2:1", "http://10.0.0.3:1")
    assert backend.api_key == SecretStr("the-text-of-engine-key")
    assert backend.cache_salt == "off"  # the word, which YAML 1.1 reads as false
    assert backend.limit.allow_truncating_engine
    assert backend.queue is not None
    assert tuple(backend.queue.model_dump().values()) == (5, 6, 7.0, 8, 9)
    calibration = backend.calibration
    assert (calibration.every, calibration.on_difference) == (7200.0, "margin")
    assert (calibration.margin, calibration.learn_offset) == (64, True)
    plain, ending = written.tenants[0].key_sha256
    assert plain == TenantKey(sha256="a" * 64)
    assert ending.not_before == datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert ending.not_after == datetime(2027, 1, 1, tzinfo=UTC)
    assert written.policy_of(written.tenants[0]) == Policy(
        requests_per_minute=1,
        tokens_per_minute=2,
        input_tokens_per_minute=9,
        output_tokens_per_minute=8,
        tokens_per_day=3,
        tokens_per_month=7,
        concurrent=4,
        bursts={"tokens_per_minute": 1},
        per_model={
            "*-5": Quotas(concurrent=2, requests_per_minute=3, bursts={"requests_per_minute": 2})
        },
        cached_token_weight=0.25,
        weight=2.0,
        max_prompt_tokens=5,
        reserve_output_tokens=6,
        models=("glm-5",),
        shadow=True,
    )
    assert written.policies["q"].concurrent == 4
    assert not written.policies["q"].shadow
    assert written.integrity.latency.action == "off"
    assert written.body.max_bytes == 3 * 2**19
    assert written.timeouts.model_dump() == {
        "connect": 0.1,
        "first_byte": 7200.0,
        "first_byte_per_1k_tokens": 1.0,
        "idle": 86400.0,
        "body": 1.5,
        "headers": 2.5,
        "write_idle": 30.0,
        "keep_alive": 620.0,
    }
    routing = written.routing
    assert (routing.policy, routing.stream_tokens, routing.load_factor) == ("affinity", 8, 2.0)
    assert (routing.session, routing.session_header) == ("header", "x-chat")
    assert routing.secret == SecretStr("the-value-of-ROUTING_SECRET")
    assert tuple(routing.ejection.model_dump().values()) == (3, 1.0, 9.0, 0.25)
    assert tuple(written.connections.model_dump().values()) == (500, 20)
    assert (written.drain, written.counting.threads, written.counting.inline_bytes) == (0, 4, 1000)


def test_the_fail_closed_defaults() -> None:
    (backend,) = settings().backends
    assert backend.limit.when_unknown == "refuse"
    assert backend.limit.when_uncountable == "refuse"
    assert not backend.limit.allow_truncating_engine
    assert backend.cache_salt == "per_tenant"
    assert settings().admin == HostPort("127.0.0.1", 9090)
    assert settings().listen == HostPort("127.0.0.1", 8080)


def test_settings_are_frozen() -> None:
    parsed = settings()
    with pytest.raises(ValidationError):
        parsed.drain = 1.0  # type: ignore[misc]
    with pytest.raises(ValidationError):
        parsed.backends[0].limit.margin = 1  # type: ignore[misc]


def test_secrets_show_in_no_representation() -> None:
    secret = "LEAKMARK-LEAKMARK-LEAKMARK"
    parsed = settings(backends=[{**BACKEND, "api_key": secret, "salt_secret": secret}])
    assert parsed.backends[0].salt_secret == SecretStr(secret)
    for shown in (repr(parsed), str(parsed), parsed.model_dump_json(), str(parsed.model_dump())):
        assert "LEAKMARK" not in shown


def test_the_default_policy_need_not_be_written_but_can_be() -> None:
    without, written = settings(), settings(policies={"default": {"concurrent": 3}})
    assert without.policy_of(without.tenants[0]) == Policy()
    assert written.policy_of(written.tenants[0]).concurrent == 3


def test_a_sole_tenant_may_be_open() -> None:
    assert settings(tenants=[{"id": "me"}]).tenants[0].key_sha256 == ()


@pytest.mark.parametrize(
    ("listen", "admin"),
    [
        ("127.0.0.1:80", "127.0.0.2:80"),
        ("0.0.0.0:80", "127.0.0.1:81"),
        ("127.0.0.1:0", "127.0.0.1:0"),
    ],
)
def test_planes_apart(listen: str, admin: str) -> None:
    parsed = settings(listen=listen, admin=admin)
    assert (str(parsed.listen), str(parsed.admin)) == (listen, admin)
