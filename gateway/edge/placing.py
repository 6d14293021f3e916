"""Which backend a request goes to: the first of those in order that admits its prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.admission import ENGINE, decide, effective_limit, require_short, settles
from gateway.core.capacity import Known
from gateway.core.quarantine import State
from gateway.core.tenants import Tenant
from gateway.dialects import isolation
from gateway.edge.backends import Backend
from gateway.edge.exchange import Exchange, Stage
from gateway.edge.routing import out_for_failures, quarantined
from gateway.edge.sentinels import MOST_TOKENS, SentinelDesk
from gateway.errors import Kind, Rejection
from gateway.types import Bounded, Counted, ParsedRequest, PromptLength, Unverifiable

# What one backend refuses and another may not: their limits, tokenizers and states differ.
_OTHERS_MAY_ADMIT = frozenset(
    {
        Kind.PROMPT_TOO_LONG,
        Kind.NOT_COUNTABLE,
        Kind.COUNT_UNAVAILABLE,
        Kind.LIMIT_UNKNOWN,
        Kind.ENGINE_UNSAFE,
        Kind.QUARANTINED,
    }
)
_NOT_COUNTED = frozenset({Kind.NOT_COUNTABLE, Kind.COUNT_UNAVAILABLE})
COUNTS_TRIED = 3  # backends that give no count, after which the next is not asked


class Submitted(Struct, frozen=True):
    """A request as admission takes it: ``marked`` with our marker, ``parsed`` without."""

    tenant: Tenant
    marked: ParsedRequest
    parsed: ParsedRequest


class _Refused(Struct, frozen=True):
    """One backend's refusal and what was known of the prompt's length there."""

    backend: Backend
    why: Rejection
    length: PromptLength | None
    limit: int | None
    doubt: str | None


async def place(
    order: Iterable[Backend],
    serving: Sequence[Backend],
    asked: Submitted,
    exchange: Exchange,
    desk: SentinelDesk | None,
) -> tuple[Backend, ParsedRequest]:
    """The first backend in ``order`` that admits the prompt, and what it is sent.

    ``serving``: all backends of the model, those out of service too. Where none admits it, raises
    the ``Rejection`` that says most: a prompt is too long (400) only if it is for every backend
    of the model, and then the largest limit is told; else what may pass (503) is.
    """
    refused: list[_Refused] = []
    for backend in order:
        if _would_refuse_too(backend, asked.parsed.model, refused):
            continue
        _at(backend, asked.parsed, exchange)
        exchange.length = exchange.limit = None
        try:
            return backend, await admit_marked(backend, asked, exchange, desk)
        except Rejection as why:
            if why.kind not in _OTHERS_MAY_ADMIT:
                raise
            told = exchange.length, exchange.limit, exchange.doubt
            refused.append(_Refused(backend, why.kept(), *told))
    foremost = max(refused, key=_weight)
    exchange.backend, exchange.engine = foremost.backend.name, foremost.backend.engine
    exchange.doubt = foremost.doubt
    exchange.length, exchange.limit = foremost.length, foremost.limit
    raise _away(serving, asked.parsed.model, foremost, refused) or foremost.why


async def count(order: Iterable[Backend], asked: Submitted, exchange: Exchange) -> Counted | None:
    """The prompt's length for a request that asks for no more, by the first that can count now.

    None where it cannot be counted and may be forwarded. Raises ``Rejection`` where it may not.
    """
    parsed, tenant, tried = asked.parsed, asked.tenant.id, 0
    for backend in order:
        _at(backend, parsed, exchange)
        length = await backend.measurer.exact(asked.marked, tenant)
        if isinstance(length, Unverifiable) and asked.marked is not parsed:
            length = await backend.measurer.exact(parsed, tenant)
        exchange.length, tried = length, tried + 1
        if isinstance(length, Unverifiable) and length.transient and tried < COUNTS_TRIED:
            continue
        break
    decide(length, None, backend.wiring.outcomes)
    return length if isinstance(length, Counted) else None


async def admit(
    backend: Backend, tenant: Tenant, parsed: ParsedRequest, exchange: Exchange
) -> None:
    """Length against limit, as both are now. Measures anew only where that settles nothing."""
    if backend.traits.folds_names:
        isolation.require_exact_names(parsed.body)
    limit = effective_limit(
        backend.capacity_for(parsed.model),
        tenant.policy.max_prompt_tokens,
        backend.wiring.outcomes,
    )
    exchange.limit = limit.tokens if limit else None
    length = exchange.length
    if not isinstance(length, Counted | Bounded) or not settles(length, limit):
        began = backend.clock()
        try:
            length = await backend.measurer.measure(parsed, exchange.limit, tenant.id)
        finally:
            exchange.stages.append(Stage("count", began, backend.clock()))
        exchange.length = length
    decide(length, limit, backend.wiring.outcomes)
    standing = backend.standing.state
    if standing is State.QUARANTINED:  # since it was chosen
        raise quarantined()
    if standing is State.SUSPECT:
        if isinstance(length, Bounded) and length.longest > backend.floor:
            exchange.length = length = await backend.measurer.exact(parsed, tenant.id)
        require_short(length, backend.floor)


async def admit_marked(
    backend: Backend, asked: Submitted, exchange: Exchange, desk: SentinelDesk | None
) -> ParsedRequest:
    """What is sent: the marked request, or the client's own where the marker alone is too much.

    A prompt that fits is never refused for our marker, nor one that the engine's template would
    render without it. Raises ``Rejection`` as ``admit`` does.
    """
    tenant, marked, parsed = asked.tenant, asked.marked, asked.parsed
    if desk is not None and marked is not parsed:
        try:
            await admit(backend, tenant, marked, exchange)
            outcome = "not_countable" if isinstance(exchange.length, Unverifiable) else "placed"
        except Rejection as refusal:
            outcome = _for_the_marker(refusal)
            if not outcome:
                raise
        desk.note(outcome)
        if outcome == "placed":
            return marked
        exchange.length = None
    await admit(backend, tenant, parsed, exchange)
    return parsed


async def readmit(
    order: Iterable[Backend], tenant: Tenant, parsed: ParsedRequest, exchange: Exchange
) -> tuple[Backend, Exchange] | None:
    """The first backend in ``order`` that admits a request as it was sent to another, if any.

    With it comes what admission found there; ``exchange`` stays as it is.
    """
    refused: list[_Refused] = []
    for backend in order:
        if _would_refuse_too(backend, parsed.model, refused):
            continue
        trial = replace(exchange, length=None)
        _at(backend, parsed, trial)
        try:
            await admit(backend, tenant, parsed, trial)
        except Rejection as why:
            refused.append(_Refused(backend, why.kept(), trial.length, trial.limit, trial.doubt))
            continue
        return backend, trial
    return None


def _at(backend: Backend, parsed: ParsedRequest, exchange: Exchange) -> None:
    """Note where the exchange is tried now."""
    exchange.backend, exchange.engine = backend.name, backend.engine
    exchange.doubt = backend.doubt(parsed.prompt)


def _for_the_marker(refusal: Rejection) -> str:
    """What became of a marker that may be the reason of a refusal; empty where it cannot be."""
    if refusal.kind is Kind.NOT_COUNTABLE:
        return "not_countable"
    too_long = refusal.too_long
    if too_long is not None and too_long.tokens <= too_long.limit + MOST_TOKENS:
        return "no_room"
    return ""


def _would_refuse_too(backend: Backend, model: str, refused: Sequence[_Refused]) -> bool:
    """Whether it counts as one that has refused and has no larger limit: no need to ask it."""
    without_count = 0
    for one in refused:
        without_count += one.why.kind in _NOT_COUNTED
        if one.backend.counted_as != backend.counted_as:
            continue
        if one.why.kind is Kind.NOT_COUNTABLE:
            return True
        if one.why.kind is Kind.PROMPT_TOO_LONG and not _larger(backend, model, one):
            return True
    return without_count >= COUNTS_TRIED


def _larger(backend: Backend, model: str, one: _Refused) -> bool:
    """Whether the backend may hold a prompt that ``one`` refused for its length."""
    too_long = one.why.too_long
    if too_long is not None and too_long.limited_by != ENGINE:
        return False  # the tenant's own limit is the same everywhere
    limit = backend.capacity_for(model)
    return not isinstance(limit, Known) or one.limit is None or limit.tokens > one.limit


def _weight(refused: _Refused) -> tuple[bool, bool, int]:
    """What may pass before what will not, the largest limit before others; the first of equals."""
    kind = refused.why.kind
    return kind.status >= 500, kind is Kind.PROMPT_TOO_LONG, refused.limit or 0


def _away(
    serving: Sequence[Backend], model: str, foremost: _Refused, refused: Sequence[_Refused]
) -> Rejection | None:
    """The refusal where a backend out of service may hold what is over the limit of the others."""
    if foremost.why.kind is not Kind.PROMPT_TOO_LONG:
        return None
    asked = {one.backend.name for one in refused}
    for backend in serving:
        if backend.name in asked or not _larger(backend, model, foremost):
            continue
        if backend.standing.state is State.QUARANTINED:
            return quarantined()
        if backend.past.health.until is not None:
            return out_for_failures(backend.ejections.retry_after(backend))
    return None
