"""The order in which a model's backends are offered a request. The rules are ``core.choice``'s."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from aiohttp import web

from gateway.core.capacity import Known
from gateway.core.choice import affine_first, least_first, work
from gateway.core.quarantine import NOTHING, State
from gateway.core.tenants import Tenant
from gateway.dialects.beginning import beginning, user_of
from gateway.edge.backends import MODELS_REMEMBERED, Backend
from gateway.errors import Kind, Rejection
from gateway.types import ParsedRequest

BYTES_A_TOKEN = 4  # of English text; only the order of backends hangs on it


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator set. ``secret`` keys the hashes of affinity; without one there is none.

    ``session`` is what belongs together: ``prompt``, ``user``, or ``header`` of that name.
    """

    stream_tokens: int = 64
    load_factor: float = 1.25
    secret: bytes | None = field(default=None, repr=False)
    session: str = "prompt"
    session_header: str = "x-session-id"


class Routing:
    """The backends of one configuration."""

    def __init__(self, backends: Sequence[Backend], policy: Policy) -> None:
        self._backends = backends
        self._policy = policy
        self._by_model: dict[str, tuple[Backend, ...]] = {}
        self._turns = count()

    def serving(self, model: str) -> tuple[Backend, ...]:
        """The backends that configuration gives ``model``, whatever their state.

        Raises ``Rejection`` (MODEL_NOT_FOUND) where there is none.
        """
        serving = self._by_model.get(model)
        if serving is None:
            serving = tuple(backend for backend in self._backends if backend.serves(model))
            if not serving:
                raise Rejection(
                    Kind.MODEL_NOT_FOUND,
                    "No backend of this gateway serves that model.",
                    param="model",
                )
            if len(self._by_model) >= MODELS_REMEMBERED:
                self._by_model.clear()
            self._by_model[model] = serving
        return serving

    def affinity(self, request: web.BaseRequest, tenant: Tenant, parsed: ParsedRequest) -> int:
        """A number that requests share whose prefix an engine may have cached; 0: there is none."""
        policy = self._policy
        if policy.secret is None:
            return 0
        told = ""
        if policy.session == "user":
            told = user_of(parsed)
        elif policy.session == "header":
            told = request.headers.get(policy.session_header, "")
        mark = b"session\0" + told.encode("utf-8", "surrogateescape") if told else beginning(parsed)
        if not mark:
            return 0
        digest = hmac.digest(policy.secret, tenant.id.encode() + b"\0" + mark, "sha256")
        return int.from_bytes(digest[:8]) or 1

    def order(
        self, parsed: ParsedRequest, affinity: int = 0, *, but: str | None = None
    ) -> Iterator[Backend]:
        """Those that may be used, the first choice first, without the one named ``but``.

        Suspects come last, for they take short prompts only; before them those whose limit is not
        known where that does not keep requests away. Raises ``Rejection`` at once: MODEL_NOT_FOUND,
        and EJECTED or QUARANTINED where none may be used.
        """
        serving = self.serving(parsed.model)
        # Whether nothing is known against it is seen at a glance, without a call: there may be
        # hundreds.
        plain = [
            backend
            for backend in serving
            if backend.plain
            and (past := backend.past).health.until is None
            and past.case is NOTHING
            and backend.name != but
        ]
        tiers = [plain, [], []]
        if len(plain) < len(serving):
            placed = set(plain)
            for backend in serving:
                if backend.name != but and backend not in placed:
                    place = _place(backend, parsed.model)
                    if place is not None:
                        tiers[place].append(backend)
            if not any(tiers):
                raise self.nobody(parsed.model)
        return self._through(tiers, affinity, len(parsed.raw) // BYTES_A_TOKEN)

    def nobody(self, model: str) -> Rejection:
        """The refusal where no backend of the model may be used."""
        ejected = [
            backend.ejections.retry_after(backend)
            for backend in self.serving(model)
            if backend.past.health.until is not None
            and backend.standing.state is not State.QUARANTINED
        ]
        return out_for_failures(min(ejected)) if ejected else quarantined()

    def _through(
        self, tiers: Sequence[Sequence[Backend]], affinity: int, tokens: int
    ) -> Iterator[Backend]:
        policy, turn = self._policy, next(self._turns)
        for tier in tiers:
            if len(tier) < 2:
                yield from tier
                continue
            left = work([backend.past.load for backend in tier], policy.stream_tokens)
            if affinity:
                seeds = [backend.seed for backend in tier]
                order = iter(affine_first(affinity, seeds, left, tokens, policy.load_factor))
            else:
                order = least_first(left, turn)
            for at in order:
                yield tier[at]


def quarantined() -> Rejection:
    """The refusal where a model has no backend that may be used."""
    return Rejection(
        Kind.QUARANTINED,
        "No backend of this model may be used now: integrity checks took them out of service.",
    )


def out_for_failures(retry_after: int) -> Rejection:
    """The refusal where the backends left are out because they fail."""
    return Rejection(
        Kind.EJECTED,
        "The backends that could serve this request are out of service after repeated failures;"
        f" they are tried again in {retry_after} s.",
        retry_after=retry_after,
    )


def _place(backend: Backend, model: str) -> int | None:
    """Its tier: 0 with the plain, 1 of unknown limit that takes any prompt, 2 suspect; or none."""
    state = backend.standing.state
    if state is State.QUARANTINED or not backend.ejections.open(backend):
        return None
    if state is State.SUSPECT:
        return 2
    any_prompt = backend.wiring.outcomes.allow_unknown_limit
    return 1 if any_prompt and not isinstance(backend.capacity_for(model), Known) else 0
