"""What each tenant uses now, for operators. Names and numbers; never a key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.tenants import Tenant, TenantDirectory
from gateway.edge.leases import Leases
from gateway.errors import Rejection
from gateway.limits.base import Charge
from gateway.limits.gcra import Decision

SHOWN = 100  # tenants; each costs the store a question


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
    try:
        async with asyncio.timeout(seconds):
            told = await asyncio.gather(*(_quotas(leases, tenant) for tenant in shown))
    except TimeoutError:
        told = [None] * len(shown)
    return {
        "shown": [
            {"id": tenant.id, "in_flight": leases.in_flight(tenant.id), "quotas": quotas}
            for tenant, quotas in zip(shown, told, strict=True)
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


async def _quotas(leases: Leases, tenant: Tenant) -> list[dict[str, Any]] | None:
    try:
        decisions = await leases.standing(tenant)
    except Rejection:
        return None
    return [_quota(charge, decision) for charge, decision in decisions.items()]


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
