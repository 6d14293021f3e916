"""Rules that tie one part of the configuration to another.

They look at the values as written, not at the models, so that they can be told along with every
other fault: a model does not exist while one of its fields is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.settings.models import Settings
from gateway.settings.patterns import overlap
from gateway.settings.problems import Problem
from gateway.settings.tenants import DEFAULT_POLICY
from gateway.settings.units import HostPort, host_port

_EVERY_INTERFACE = frozenset({"0.0.0.0", "::"})

Written = Mapping[Any, Any]


def cross_problems(written: Written) -> Iterator[Problem]:
    """Every fault between parts. Values of the wrong type are left to the models."""
    yield from _repeated(written, "backends", "name")
    yield from _repeated(written, "tenants", "id")
    yield from _shared_keys(written)
    yield from _unreachable_tenants(written)
    yield from _unknown_policies(written)
    yield from _quotas_of_no_model(written)
    yield from _one_port_for_both(written)


def settings_problems(settings: Settings) -> Iterator[Problem]:
    """Faults that show only once references are resolved: a store may be written as one."""
    if settings.workers > 1 and not settings.limits.store.shared:
        yield Problem(
            "workers",
            "more than one needs limits.store to be a redis store: each would count in a memory "
            "of its own, and every quota would be that many times as large",
        )


def _entries(written: Written, section: str) -> Iterator[tuple[int, Written]]:
    entries = written.get(section)
    for index, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
        if isinstance(entry, Mapping):
            yield index, entry


def _texts(value: object) -> list[str]:
    return [item for item in _items(value) if isinstance(item, str)]


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _digests(tenant: Written) -> list[str]:
    """The hashes of a tenant's keys, of those written alone and of those with an end."""
    keys = _items(tenant.get("key_sha256"))
    return _texts([key.get("sha256") if isinstance(key, Mapping) else key for key in keys])


def _repeated(written: Written, section: str, key: str) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, entry in _entries(written, section):
        name = entry.get(key)
        if not isinstance(name, str):
            continue
        if name in first:
            yield Problem(
                f"{section}[{index}].{key}",
                f"{name!r} is already the {key} of {section}[{first[name]}]",
            )
        first.setdefault(name, index)


def _shared_keys(written: Written) -> Iterator[Problem]:
    owners: dict[str, int] = {}
    for index, tenant in _entries(written, "tenants"):
        for position, digest in enumerate(_digests(tenant)):
            owner = owners.setdefault(digest.lower(), index)
            if owner != index:
                yield Problem(
                    f"tenants[{index}].key_sha256[{position}]",
                    f"is also a key of tenants[{owner}]: a key must belong to one tenant",
                )


def _unreachable_tenants(written: Written) -> Iterator[Problem]:
    tenants = list(_entries(written, "tenants"))
    for index, tenant in tenants if len(tenants) > 1 else ():
        if tenant.get("key_sha256", []) == []:
            yield Problem(
                f"tenants[{index}].key_sha256",
                "needs a key: without one no request could be told to be this tenant's "
                "(only a sole tenant may be open)",
            )


def _unknown_policies(written: Written) -> Iterator[Problem]:
    policies = written.get("policies", {})
    known = set(policies) if isinstance(policies, Mapping) else set()
    for index, tenant in _entries(written, "tenants"):
        policy = tenant.get("policy")
        if isinstance(policy, str) and policy not in known | {DEFAULT_POLICY}:
            yield Problem(f"tenants[{index}].policy", f"there is no policy {policy!r}")


def _quotas_of_no_model(written: Written) -> Iterator[Problem]:
    """A quota that no request can come under limits nothing, and looks as if it did."""
    served = [
        pattern
        for _, backend in _entries(written, "backends")
        for pattern in _texts(backend.get("models", ["*"]))
    ]
    policies = written.get("policies")
    for name, policy in policies.items() if isinstance(policies, Mapping) else ():
        quotas = policy.get("per_model") if isinstance(policy, Mapping) else None
        allowed = _texts(policy.get("models", ["*"])) if isinstance(policy, Mapping) else []
        for pattern in quotas if isinstance(quotas, Mapping) else ():
            if not isinstance(pattern, str):
                continue
            path = f"policies.{name}.per_model.{pattern}"
            if not any(overlap(pattern, other) for other in served):
                yield Problem(path, "no backend serves a model that it covers")
            elif not any(overlap(pattern, other) for other in allowed):
                yield Problem(path, "the policy's models name none that it covers")


def _one_port_for_both(written: Written) -> Iterator[Problem]:
    listen, admin = _address(written, "listen"), _address(written, "admin")
    if listen and admin and _collide(listen, admin):
        yield Problem("admin", "must not be on the port of listen: it is never for clients")


def _collide(one: HostPort, other: HostPort) -> bool:
    hosts = {one.host, other.host}
    same_host = len(hosts) == 1 or bool(hosts & _EVERY_INTERFACE)
    return one.port == other.port != 0 and same_host


def _address(written: Written, key: str) -> HostPort | None:
    if key not in written:
        default: HostPort = Settings.model_fields[key].default
        return default
    try:
        return host_port(written[key])
    except ValueError:
        return None
