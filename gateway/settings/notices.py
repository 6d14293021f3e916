"""Settings that parse, as the contract says, but that this version does not act on.

Saying so is the point: a safety setting that is silently inert is worse than none. A setting left
at its default is not mentioned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from pydantic import BaseModel

INACTIVE: Mapping[str, str] = MappingProxyType(
    {
        "limits.when_store_fails": "the memory store, the only one in this version, cannot fail",
        "limits.timeout": "the memory store, the only one in this version, never waits",
        "integrity.cached_tokens": "the check of cached tokens is not in this version",
        "integrity.sentinel": "sentinels are not in this version: no marker is placed or scanned",
        "integrity.fingerprints": "fingerprints are not in this version: none are kept or compared",
        "integrity.quarantine": "quarantine is not in this version: no backend is taken out",
    }
)


def notices(settings: BaseModel) -> Iterator[str]:
    """One line for each written setting without effect, in the order of ``INACTIVE``."""
    for path, reason in INACTIVE.items():
        if _written(settings, path.split(".")):
            yield f"{path} is not active: {reason}"


def _written(model: object, path: list[str]) -> bool:
    if not path:
        return model is not None
    if not isinstance(model, BaseModel) or path[0] not in model.model_fields_set:
        return False
    return _written(getattr(model, path[0]), path[1:])
