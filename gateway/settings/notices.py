"""What is written but has no effect: in this version, with this store, or with these tenants.

Saying so is the point: a safety setting that is silently inert is worse than none. A setting left
at its default is not mentioned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from gateway.settings.models import Settings

INACTIVE: Mapping[str, str] = MappingProxyType({})
WITHOUT_AFFINITY = ("load_factor", "session", "session_header", "secret")
INACTIVE_IN_MEMORY: Mapping[str, str] = MappingProxyType(
    {
        "limits.when_store_fails": "the memory store cannot fail",
        "limits.timeout": "the memory store never waits",
        "limits.lease": "the memory store ends with its process",
    }
)


def notices(settings: Settings) -> Iterator[str]:
    """One line for each written setting without effect, in the order of the mappings above."""
    inactive = {**({} if settings.limits.store.shared else INACTIVE_IN_MEMORY), **INACTIVE}
    for path, reason in inactive.items():
        if _written(settings, path.split(".")):
            yield f"{path} is not active: {reason}"
    yield from _about_sharing(settings)
    if settings.integrity.sentinel is not None and len(settings.tenants) == 1:
        yield "integrity.sentinel is of little use: there is only one tenant"
    followed = {tenant.policy for tenant in settings.tenants}
    for name in settings.policies:
        if name not in followed:
            yield f"policies.{name} is not active: no tenant is under it"
    if settings.routing.policy != "affinity":
        for name in WITHOUT_AFFINITY:
            if _written(settings, ["routing", name]):
                yield f"routing.{name} is not active: routing.policy is not affinity"
    telemetry = settings.telemetry
    if telemetry is not None and not telemetry.sample and not telemetry.trust_traceparent:
        yield "telemetry is not active: its sample is 0, and no client's traceparent is trusted"
    if settings.integrity.fingerprints is not None:
        yield from _about_fingerprints(settings)


def _about_sharing(settings: Settings) -> Iterator[str]:
    fingerprints = settings.integrity.fingerprints
    asked = settings.integrity.shared.model_fields_set or (fingerprints and fingerprints.shared)
    if not asked:
        return
    if not settings.shared_store.shared:
        if "every" in settings.integrity.shared.model_fields_set:
            yield "integrity.shared is not active: there is no store to share through"
    elif settings.integrity.secret is None:
        yield (
            "integrity.shared is active in part: without integrity.secret, only the workers of one "
            "gateway share, until it ends"
        )


def _about_fingerprints(settings: Settings) -> Iterator[str]:
    if len(settings.tenants) == 1:
        yield "integrity.fingerprints is not active: there is one tenant, so no text is another's"
    elif settings.integrity.fingerprints and settings.integrity.fingerprints.shared:
        if not settings.shared_store.shared:
            yield "integrity.fingerprints.shared is not active: there is no store to share through"
    elif settings.workers > 1:
        yield (
            "integrity.fingerprints is active in part: each of the workers compares answers with "
            "what it saw itself"
        )


def _written(model: object, path: list[str]) -> bool:
    if not path:
        return model is not None
    if not isinstance(model, BaseModel) or path[0] not in model.model_fields_set:
        return False
    return _written(getattr(model, path[0]), path[1:])
