from __future__ import annotations

import pytest

from gateway.settings import (
    HostPort,
    NoSecrets,
    SettingsError,
    for_backend,
    parse,
    with_addresses,
)


def test_one_url_is_a_whole_configuration() -> None:
    settings = for_backend("http://10.0.0.1:30000/")
    (backend,), (tenant,) = settings.backends, settings.tenants
    assert (backend.name, backend.url, backend.engine) == (
        "default",
        "http://10.0.0.1:30000",
        "auto",
    )
    assert (tenant.id, tenant.key_sha256) == ("default", ())
    policy = settings.policy_of(tenant)
    assert policy.requests_per_minute is policy.tokens_per_minute is policy.concurrent is None
    assert policy.models == ("*",)
    assert str(settings.limits.store) == "memory"
    assert settings.notices == ()


def test_one_url_with_addresses() -> None:
    settings = for_backend("http://h", listen="0.0.0.0:80", admin="127.0.0.1:81", engine="vllm")
    assert (settings.listen, settings.admin) == (HostPort("0.0.0.0", 80), HostPort("127.0.0.1", 81))
    assert settings.backends[0].engine == "vllm"


def test_one_url_at_fault() -> None:
    with pytest.raises(SettingsError) as caught:
        for_backend("h:1", listen="x")
    assert [problem.path for problem in caught.value.problems] == ["listen", "backends[0].url"]


def test_one_url_with_a_tokenizer() -> None:
    assert for_backend("http://h", tokenizer="qwen3").backends[0].tokenizer == "qwen3"
    assert for_backend("http://h").backends[0].tokenizer is None


def test_addresses_from_elsewhere_replace_those_given() -> None:
    settings = for_backend("http://h", listen="127.0.0.1:1", admin="127.0.0.1:2")
    assert with_addresses(settings, listen=None, admin=None) == settings
    moved = with_addresses(settings, listen="[::1]:3", admin=None)
    assert (moved.listen, moved.admin) == (HostPort("::1", 3), HostPort("127.0.0.1", 2))
    assert settings.listen == HostPort("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("listen", "admin", "paths"),
    [
        ("x", "y", ["listen", "admin"]),
        ("0.0.0.0:9090", None, ["admin"]),
        (None, "[::]:8080", ["admin"]),
    ],
)
def test_addresses_from_elsewhere_are_checked(
    listen: str | None, admin: str | None, paths: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        with_addresses(for_backend("http://h"), listen=listen, admin=admin)
    assert [problem.path for problem in caught.value.problems] == paths


def test_a_mapping_and_its_yaml_are_the_same() -> None:
    text = "backends: [{name: a, url: 'http://h:1'}]\ndrain: 1s\n"
    mapping = {"backends": [{"name": "a", "url": "http://h:1"}], "drain": "1s"}
    assert parse(text, NoSecrets()) == parse(mapping, NoSecrets())


def test_parsing_leaves_the_mapping_alone() -> None:
    mapping = {"backends": [{"name": "a", "url": "http://h:1/"}]}
    parse(mapping, NoSecrets())
    assert mapping == {"backends": [{"name": "a", "url": "http://h:1/"}]}


def test_the_error_reads_as_one_fault_a_line() -> None:
    with pytest.raises(SettingsError) as caught:
        parse("backends: []\ndrain: x\n", NoSecrets())
    lines = str(caught.value).splitlines()
    assert lines == [str(problem) for problem in caught.value.problems]
    assert [line.split(":")[0] for line in lines] == ["backends", "drain"]


class Variable:
    """A source with one variable for every name."""

    def __init__(self, value: str) -> None:
        self.value = value

    def env(self, name: str) -> str:
        return self.value

    def file(self, path: str) -> str:
        raise FileNotFoundError(path)


def test_workers_need_a_store_that_is_shared_however_it_is_written() -> None:
    text = "workers: 2\nlimits: {store: '${STORE}'}\nbackends: [{name: a, url: 'http://h:1'}]\n"
    assert parse(text, Variable("redis://h")).workers == 2
    with pytest.raises(SettingsError, match="more than one needs limits"):
        parse(text, Variable("memory"))
    assert parse(text.replace("2", "1", 1), Variable("memory")).workers == 1
