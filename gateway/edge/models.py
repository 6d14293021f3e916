"""``GET /v1/models``, answered here: what the gateway serves and the longest prompt it takes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.core.capacity import Known
from gateway.core.tenants import Tenant, allowed
from gateway.edge.backends import Backend

ROUTE = ("GET", "/v1/models")


def listing(backends: Iterable[Backend], tenant: Tenant) -> bytes:
    """The OpenAI list. ``max_model_len`` is the limit that really holds, one the engine's
    advertised context may exceed; it is absent while no limit is known.
    """
    cards = {}
    for backend in backends:
        for model in _names(backend):
            if model in cards or not backend.serves(model) or not allowed(tenant, model):
                continue
            card = {"id": model, "object": "model", "created": 0, "owned_by": "poolgate"}
            known = backend.capacity(model)
            if isinstance(known, Known):
                card["max_model_len"] = min(
                    known.tokens, tenant.policy.max_prompt_tokens or known.tokens
                )
            cards[model] = card
    return msgspec.json.encode({"object": "list", "data": list(cards.values())})


def _names(backend: Backend) -> Iterable[str]:
    """What the engine told; where it told nothing, the names configuration spells out."""
    return backend.models() or [name for name in backend.wiring.models if "*" not in name]
