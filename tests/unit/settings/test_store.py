from __future__ import annotations

import pytest

from gateway.settings import NoSecrets, SettingsError, explain, parse
from gateway.settings.store import MEMORY, Kind, Store, parse_store
from gateway.settings.units import HostPort

BACKENDS = [{"name": "a", "url": "http://h"}]


def settings_with(**limits: str):
    return parse({"backends": BACKENDS, "limits": limits}, NoSecrets())


@pytest.mark.parametrize(
    ("text", "store"),
    [
        ("memory", MEMORY),
        ("redis://h", Store(Kind.SERVER, (HostPort("h", 6379),))),
        ("rediss://[::1]:1/3", Store(Kind.SERVER, (HostPort("::1", 1),), database=3, tls=True)),
        ("redis://[::1]", Store(Kind.SERVER, (HostPort("::1", 6379),))),
        ("unix:///run/v.sock", Store(Kind.SOCKET, path="/run/v.sock")),
        ("unix:///run/v.sock?db=2", Store(Kind.SOCKET, path="/run/v.sock", database=2)),
        (
            "redis+sentinel://a:1,b/main/4",
            Store(
                Kind.SENTINEL,
                (HostPort("a", 1), HostPort("b", 26379)),
                service="main",
                database=4,
            ),
        ),
        (
            "rediss+cluster://a:1,b:2",
            Store(Kind.CLUSTER, (HostPort("a", 1), HostPort("b", 2)), tls=True),
        ),
    ],
)
def test_each_form(text: str, store: Store) -> None:
    assert parse_store(text) == store
    assert parse_store(str(store)) == store
    assert store.shared is (text != "memory")


@pytest.mark.parametrize(
    ("written", "user", "password"),
    [(":p%40%2F@", None, "p@/"), ("u:p:q@", "u", "p:q"), ("u%3A:sesame@", "u:", "sesame")],
)
@pytest.mark.parametrize(
    "rest", ["redis://{}h", "unix://{}/s", "redis+cluster://{}h", "redis+sentinel://{}h/m"]
)
def test_row_65_credentials_are_read_and_never_written(
    rest: str, written: str, user: str | None, password: str
) -> None:
    store = parse_store(rest.format(written))
    assert store.username == user
    assert store.password is not None
    assert store.password.get_secret_value() == password
    assert str(store) == str(parse_store(rest.format("")))
    assert password not in repr(store)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("redis", "must be memory, or a URL"),
        ("memory://", "must be memory, or a URL"),
        ("http://LEAKMARK@h", "must be memory, or a URL"),
        ("redis://LEAKMARK@h", "a password after the user"),
        ("redis://:LEAKMARK@", "host"),
        ("redis://:LEAKMARK@h:0", "ports above 0"),
        ("redis://:LEAKMARK@h:70000", "port"),
        ("redis://:LEAKMARK@a,b", "several hosts"),
        ("redis://:LEAKMARK@h/x", "database by a number"),
        ("redis://:LEAKMARK@h/0?x=1", "database by a number"),
        ("redis://::1", "brackets"),
        ("unix://s", "absolute path"),
        ("unix:///s?x=1", "?db=NUMBER"),
        ("redis+sentinel://:LEAKMARK@h", "service"),
        ("redis+cluster://:LEAKMARK@h/1", "one database"),
        ("redis+cluster://", "host"),
    ],
)
def test_row_65_a_fault_is_told_without_the_url(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_with(store=text)
    [problem] = caught.value.problems
    assert problem.path == "limits.store"
    assert told in problem.message
    assert "LEAKMARK" not in str(caught.value)


def test_a_url_may_come_from_elsewhere() -> None:
    class Environment(NoSecrets):
        def env(self, name: str) -> str | None:
            return "redis://:secret@h:1" if name == "STORE" else None

    limits = parse({"backends": BACKENDS, "limits": {"store": "${STORE}"}}, Environment()).limits
    assert str(limits.store) == "redis://h:1"


def test_the_store_is_explained_without_its_password() -> None:
    told = explain(settings_with(store="redis://:LEAKMARK@h:1", when_store_fails="allow"))
    assert "counted in redis://h:1; without a word from it within 100ms" in told
    assert "ADMITTED without quotas" in told
    assert "LEAKMARK" not in told
