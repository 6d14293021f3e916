"""Whether a prompt may go to the engine. The arithmetic of lengths and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from gateway.core.capacity import Capacity, Known, Unsafe
from gateway.errors import Kind, PromptTooLong, Rejection
from gateway.types import AtLeast, Bounded, Counted, PromptLength, Unverifiable

ENGINE = "engine"
TENANT = "tenant policy"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The configured answers where no comparison is possible: True lets the request through."""

    allow_unknown_limit: bool = False
    allow_uncountable: bool = False


class Limit(Struct, frozen=True, gc=False):
    """The effective limit of one request: the smaller of engine and tenant, and whose it is."""

    tokens: int
    limited_by: str


def effective_limit(
    capacity: Capacity, tenant_limit: int | None, outcomes: Outcomes
) -> Limit | None:
    """The limit a prompt is compared with; None where an unknown one is allowed by configuration.

    Raises ``Rejection``: ENGINE_UNSAFE where the engine would truncate, LIMIT_UNKNOWN where no
    worker's limit is known and the operator did not allow that.
    """
    if isinstance(capacity, Unsafe):
        raise Rejection(Kind.ENGINE_UNSAFE, f"This backend is not used: {capacity.reason}.")
    if isinstance(capacity, Known):
        if tenant_limit is not None and tenant_limit < capacity.tokens:
            return Limit(tenant_limit, TENANT)
        return Limit(capacity.tokens, ENGINE)
    if not outcomes.allow_unknown_limit:
        raise Rejection(
            Kind.LIMIT_UNKNOWN,
            f"The longest prompt this backend can hold is not known: {capacity.reason}.",
        )
    return None if tenant_limit is None else Limit(tenant_limit, TENANT)


def settles(length: PromptLength, limit: Limit | None) -> bool:
    """Whether this length, as far as it is known, is enough to decide."""
    if isinstance(length, Bounded):
        return limit is None or length.longest <= limit.tokens
    return True


def decide(length: PromptLength, limit: Limit | None, outcomes: Outcomes) -> None:
    """Admit by returning. The comparison is exact: ``limit.tokens`` fits, one more does not.

    Raises ``Rejection``: PROMPT_TOO_LONG with both numbers; NOT_COUNTABLE (a trait of the
    request) or COUNT_UNAVAILABLE (ours or the engine's trouble) where there is no count and the
    operator did not allow that. A ``Bounded`` over the limit is a caller's error: count first.
    """
    match length:
        case Unverifiable():
            if not outcomes.allow_uncountable:
                raise _uncountable(length)
        case Counted(items) if limit is not None and length.longest > limit.tokens:
            raise _too_long(max(items), limit, at_least=False)
        case AtLeast(longest) if limit is not None and longest > limit.tokens:
            raise _too_long(longest, limit, at_least=True)
        case Bounded(longest) if limit is not None and longest > limit.tokens:
            raise ValueError("a bound over the limit decides nothing")
        case _:
            pass


def require_short(length: PromptLength, floor: int) -> None:
    """Keep long prompts from a backend under suspicion, by which the incident leaked.

    Raises ``Rejection`` (QUARANTINED) unless the prompt is known to have ``floor`` tokens or less.
    """
    if isinstance(length, Counted | Bounded) and length.longest <= floor:
        return
    raise Rejection(
        Kind.QUARANTINED,
        f"The backend of this model is under suspicion after an integrity check: prompts of more"
        f" than {floor} tokens are not sent to it.",
    )


def _too_long(tokens: int, limit: Limit, *, at_least: bool) -> Rejection:
    return Rejection(
        Kind.PROMPT_TOO_LONG,
        f"prompt of {'at least ' if at_least else ''}{tokens} tokens is over the limit of"
        f" {limit.tokens} ({limit.limited_by})",
        too_long=PromptTooLong(tokens, limit.tokens, limit.limited_by, at_least),
    )


def _uncountable(length: Unverifiable) -> Rejection:
    if length.transient:
        return Rejection(
            Kind.COUNT_UNAVAILABLE,
            f"The prompt's tokens cannot be counted right now ({length.reason}), so whether it"
            " fits cannot be decided.",
        )
    return Rejection(
        Kind.NOT_COUNTABLE,
        f"The prompt's tokens cannot be counted exactly ({length.reason}), so whether it fits"
        " cannot be decided.",
    )
