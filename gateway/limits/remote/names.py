"""Names of keys, pure: distinct quotas have distinct names, and a tenant's share one hash slot.

    poolgate:{TENANT}:q:NAME[:MODEL]    a quota's state
    poolgate:{TENANT}:lease:ID          what a running request may still settle

Every part is percent-encoded, so that no separator or brace in a name is one in the key. What is
between the braces is the hash tag by which Redis Cluster places a key (Redis Cluster
specification, "Hash tags"): a script may only touch keys of one slot.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from gateway.limits.base import LimitKey

_EMPTY = "%"  # an empty tag would be none; no encoded name is a lone percent sign


@lru_cache(maxsize=16384)
def quota_key(key: LimitKey) -> str:
    """The key of a quota's state."""
    model = "" if key.model is None else f":{_part(key.model)}"
    return f"{_prefix(key.tenant)}:q:{_part(key.name)}{model}"


def lease_key(tenant: str, lease: str) -> str:
    """The key of a lease's record; a lease's id needs no encoding."""
    return f"{_prefix(tenant)}:lease:{lease}"


def probe_key(tenant: str) -> str:
    """A key to try the store with, where this tenant's quotas are."""
    return f"{_prefix(tenant)}:probe"


@lru_cache(maxsize=16384)
def _prefix(tenant: str) -> str:
    return f"poolgate:{{{_part(tenant)}}}"


def _part(name: str) -> str:
    return quote(name, safe="", errors="surrogatepass") or _EMPTY
