"""What each tenant uses now, for operators. Names and numbers; never a key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.core.tenants import Tenant, TenantDirectory
from gateway.edge.leases import Leases
from gateway.errors import Rejection
from gateway.limits.base import Charge
from gateway.limits.gcra import Decision

SHOWN = 100  # tenants; each costs the store a question
AT_ONCE = 8  # questions


async def live_use(leases: Leases, directory: TenantDirectory, seconds: float) -> dict[str, Any]:
    """In-flight requests and quotas of those who called last, and how many others there are.

    Quotas are None where the store did not tell them within ``seconds``.
    """
    places = leases.recency()
    everyone = sorted(
        directory.tenants(),
        key=lambda one: (-leases.in_flight(one.id), -places.get(one.id, -1), one.id),
    )
    shown = everyone[:SHOWN]
    told = await _standing(leases, shown, seconds)
    return {
        "shown": [
            {
                "id": tenant.id,
                "in_flight": leases.in_flight(tenant.id),
                "quotas": told.get(tenant.id),
            }
            for tenant in shown
        ],
        "left_out": len(everyone) - len(shown),
    }


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several processes with one store tell, as if one did.

    What is in flight is summed; quotas are the store's word, which is the same to all.
    """
    tenants: dict[str, dict[str, Any]] = {}
    for each in (tenant for part in parts for tenant in part["shown"]):
        known = tenants.setdefault(each["id"], {**each, "in_flight": 0})
        known["in_flight"] += each["in_flight"]
        known["quotas"] = each["quotas"] if known["quotas"] is None else known["quotas"]
    shown = sorted(tenants.values(), key=lambda tenant: -int(tenant["in_flight"]))
    everyone = max((len(part["shown"]) + part["left_out"] for part in parts), default=0)
    return {"shown": shown, "left_out": everyone - len(shown)}


async def _standing(
    leases: Leases, tenants: Iterable[Tenant], seconds: float
) -> dict[str, list[dict[str, Any]]]:
    """The quotas of those the store told of in time. A few are asked at once: it has other work."""
    told: dict[str, list[dict[str, Any]]] = {}
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(tenant: Tenant) -> None:
        async with room:
            with contextlib.suppress(Rejection):
                decisions = await leases.standing(tenant)
                told[tenant.id] = [_quota(*each) for each in decisions.items()]

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*map(ask, tenants))
    return told


def _quota(charge: Charge, decision: Decision) -> dict[str, Any]:
    return {
        "name": charge.key.name,
        "models": charge.key.model,
        "shadow": charge.shadow,
        "limit": decision.limit,
        "used": decision.limit - decision.remaining,
        "remaining": decision.remaining,
        "reset_s": round(decision.reset_after, 3),
    }
