"""What the scripts are called with and what they answer, pure but for reading their files.

A script sees levels and costs as pairs, whole seconds and picoseconds below 1e12, since Lua's
numbers are doubles; slots in use are a pair with 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from hashlib import sha1
from importlib.resources import files
from itertools import chain
from typing import TypeGuard

from gateway.limits.base import Charge, Concurrency, Used
from gateway.limits.judge import Level, difference
from gateway.limits.remote.names import lease_key, probe_key, quota_key

RECORD_MS = 3_600_000  # a lease's record, since its last renewal
MARK_MS = 600_000  # a withdrawn lease's mark: longer than a reservation can lie in a socket
_PROBE_COST = 10**9  # picoseconds

_PICO = 10**12
_MOST = 10**24 - 1  # picoseconds: 31 000 years, so that no sum leaves what a double holds exactly

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the digest a server that has seen it knows it by."""

    name: str
    source: str
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys and arguments. All keys have one hash tag."""

    tenant: str
    script: Script
    keys: tuple[str, ...]
    args: tuple[str | int, ...]


class Verdict(IntEnum):
    """First item of the reply to ``reserve``."""

    REFUSED = 0
    TAKEN = 1
    WITHDRAWN = 2


@dataclass(frozen=True, slots=True)
class Reply:
    """What a script found. ``now`` is the server's clock in picoseconds."""

    code: int
    now: int
    repaired: int
    levels: tuple[Level, ...]


@cache
def script(name: str) -> Script:
    """The script of that name, with what all share in front."""
    folder = files(__package__) / "scripts"
    source = "".join((folder / f"{part}.lua").read_text("ascii") for part in ("common", name))
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def reserve(lease: str, charges: Sequence[Charge], slot_ms: int) -> Call:
    """Take all charges, or none."""
    tenant = charges[0].key.tenant
    return Call(
        tenant,
        script("reserve"),
        (lease_key(tenant, lease), *(quota_key(c.key) for c in charges)),
        (lease, slot_ms, RECORD_MS, *chain.from_iterable(map(_asked, charges))),
    )


def settle(
    lease: str, tenant: str, charges: Iterable[Charge], used: Used | None, *, mark: bool
) -> Call:
    """End a lease. ``mark`` where something of it may be on its way to the store still."""
    changes = [(charge, change) for charge in charges if (change := _change(charge, used))]
    return Call(
        tenant,
        script("settle"),
        (lease_key(tenant, lease), *(quota_key(charge.key) for charge, _ in changes)),
        (lease, MARK_MS if mark else 0, *chain.from_iterable(change for _, change in changes)),
    )


def renew(lease: str, tenant: str, charges: Iterable[Charge], slot_ms: int) -> Call:
    """Keep a running lease's slots and its record."""
    slots = [(c, c.quota) for c in charges if isinstance(c.quota, Concurrency)]
    return Call(
        tenant,
        script("renew"),
        (lease_key(tenant, lease), *(quota_key(charge.key) for charge, _ in slots)),
        (lease, slot_ms, RECORD_MS, *chain.from_iterable((q.limit, c.cost) for c, q in slots)),
    )


def peek(charges: Sequence[Charge], slot_ms: int) -> Call:
    """See how quotas stand."""
    return Call(
        charges[0].key.tenant,
        script("peek"),
        tuple(quota_key(charge.key) for charge in charges),
        (slot_ms, *map(_kind, charges)),
    )


def probe(tenant: str) -> Call:
    """Whether the store takes writes where this tenant's quotas are: a bucket full in no time.

    A bucket, since its first write needs memory: a store without any answers as it would a request.
    """
    key = probe_key(tenant)
    return Call(
        tenant,
        script("reserve"),
        (f"{key}:lease", key),
        ("probe", 1, 1, "bucket", 0, *_pair(_MOST), *_pair(_PROBE_COST)),
    )


def read(raw: object) -> Reply | None:
    """A script's reply, or None where it is none."""
    if not isinstance(raw, list) or len(raw) < 4 or len(raw) % 2 or not _whole(raw):
        return None
    code, seconds, microseconds, repaired, *pairs = raw
    return Reply(
        code,
        seconds * _PICO + microseconds * 10**6,
        repaired,
        tuple(s * _PICO + p for s, p in zip(pairs[::2], pairs[1::2], strict=True)),
    )


def _whole(raw: list[object]) -> TypeGuard[list[int]]:
    return all(isinstance(number, int) for number in raw)


def levels_of(charges: Sequence[Charge], reply: Reply) -> list[Level]:
    """Slots are whole seconds to a script; here they are themselves."""
    return [
        level // _PICO if isinstance(charge.quota, Concurrency) else level
        for charge, level in zip(charges, reply.levels, strict=True)
    ]


def _kind(charge: Charge) -> str:
    return "slots" if isinstance(charge.quota, Concurrency) else "bucket"


def _asked(charge: Charge) -> tuple[str | int, ...]:
    if isinstance(charge.quota, Concurrency):
        most, cost = (charge.quota.limit, 0), (charge.cost, 0)
    else:
        most, cost = _pair(charge.quota.tolerance), _pair(charge.cost * charge.quota.interval)
    return (_kind(charge), int(charge.shadow), *most, *cost)


def _change(charge: Charge, used: Used | None) -> tuple[str | int, ...] | None:
    """What ending a lease does to a quota; None where that is nothing."""
    if isinstance(charge.quota, Concurrency):
        return int(charge.shadow), "slots", charge.cost, 0
    units = difference(charge, used)
    if not units:
        return None
    way = "charge" if units > 0 else "refund"
    return (int(charge.shadow), way, *_pair(abs(units) * charge.quota.interval))


def _pair(picoseconds: int) -> Pair:
    return divmod(min(picoseconds, _MOST), _PICO)
