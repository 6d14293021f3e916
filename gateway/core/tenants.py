"""Who is asking: from the request's headers to a tenant, by the SHA-256 of its key.

The directory holds digests, never keys. What the lookup compares is a digest too, so its duration
says nothing of how much of a guessed key was right: a better guess has no more similar digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from gateway.errors import Kind, Rejection
from gateway.limits.base import Charge
from gateway.limits.policy import metered
from gateway.settings import Policy, Settings
from gateway.settings.patterns import covers

MAX_KEY_CHARS = 4096
_KEY = re.compile(rf"[!-~]{{1,{MAX_KEY_CHARS}}}", re.ASCII)
_BEARER = re.compile(r"bearer +(?P<key>[^ ]+)", re.ASCII | re.IGNORECASE)


class Headers(Protocol):
    """A request's headers, by names in which case does not count."""

    def getall(self, name: str, default: Sequence[str], /) -> Sequence[str]:
        """All values of a name, or ``default`` where there is none."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer, and what it may use. ``quotas``: one unit of each of the policy's."""

    id: str
    policy: Policy
    fingerprint: bool = True  # whether what it sends is remembered, to be known in others' answers
    quotas: tuple[Charge, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quotas", metered(self.id, self.policy))


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a tenant, good from ``not_before`` to ``not_after``, both included."""

    tenant: Tenant
    not_before: datetime | None = None
    not_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class TenantDirectory:
    """Keys by their SHA-256 (lower-case hex).

    ``open_tenant`` is set only where no key is configured at all: every request is then its.
    """

    by_digest: Mapping[str, Key]
    open_tenant: Tenant | None = None

    def tenants(self) -> Iterator[Tenant]:
        """Everyone who may call, each once."""
        found = {key.tenant.id: key.tenant for key in self.by_digest.values()}
        yield from found.values()
        if self.open_tenant is not None:
            yield self.open_tenant


def directory(settings: Settings) -> TenantDirectory:
    """The directory that a configuration describes."""
    by_digest: dict[str, Key] = {}
    keyless: list[Tenant] = []
    for entry in settings.tenants:
        tenant = Tenant(entry.id, settings.policy_of(entry), entry.fingerprint)
        for key in entry.key_sha256:
            by_digest[key.sha256] = Key(tenant, key.not_before, key.not_after)
        if not entry.key_sha256:
            keyless.append(tenant)
    return TenantDirectory(by_digest, None if by_digest else next(iter(keyless), None))


def identify(headers: Headers, directory: TenantDirectory, now: datetime) -> Tenant:
    """The tenant whose key the request carries, in ``Authorization: Bearer`` or ``x-api-key``.

    ``now`` is wall-clock time with its offset. Raises ``Rejection`` (UNAUTHORIZED) where there is
    no key, an unknown one or one past its time, or where the headers contradict each other: one
    is then not what the client believes it sent.
    """
    if directory.open_tenant is not None:
        return directory.open_tenant
    key = directory.by_digest.get(key_digest(_presented_key(headers)))
    if key is None:
        raise _unauthorized("The API key is not valid.")
    if key.not_before is not None and now < key.not_before:
        raise _unauthorized("The API key is not valid yet.")
    if key.not_after is not None and now > key.not_after:
        raise _unauthorized("The API key has expired.")
    return key.tenant


def allowed(tenant: Tenant, model: str) -> bool:
    """Whether the tenant's policy names the model."""
    return matches(tenant.policy.models, model)


def matches(patterns: Iterable[str], model: str) -> bool:
    """Whether one of the patterns covers the model."""
    return any(covers(pattern, model) for pattern in patterns)


def well_formed(key: str) -> bool:
    """Whether a key can be sent in a header at all: visible ASCII, not empty, not too long."""
    return _KEY.fullmatch(key) is not None


def key_digest(key: str) -> str:
    """What the configuration holds instead of a key."""
    return sha256(key.encode()).hexdigest()


def _presented_key(headers: Headers) -> str:
    bearers = [_bearer(value) for value in headers.getall("Authorization", ())]
    api_keys = [value.strip(" \t") for value in headers.getall("x-api-key", ())]
    if not bearers and not api_keys:
        raise _unauthorized("An API key is required: Authorization: Bearer KEY, or x-api-key.")
    if len(bearers) > 1 or len(api_keys) > 1:
        raise _unauthorized("The API key must be sent once.")
    keys = {*bearers, *api_keys}
    if len(keys) > 1:
        raise _unauthorized("Authorization and x-api-key carry different keys.")
    key = keys.pop()
    if not well_formed(key):
        raise _unauthorized("The API key is not valid.")
    return key


def _bearer(value: str) -> str:
    """The token, or an empty text where the header is anything else than one bearer token."""
    found = _BEARER.fullmatch(value.strip(" \t"))
    return found["key"] if found else ""


def _unauthorized(message: str) -> Rejection:
    return Rejection(Kind.UNAUTHORIZED, message)
