"""What one SGLang worker's ``/server_info`` says it admits.

The scheduler refuses a prompt of ``max_req_input_len`` tokens or more (``validate_input_length``),
where ``max_req_input_len = min(context, pool) - 6``; the tokenizer manager refuses one of the
context length or more. Traps in the same object: ``context_length`` and ``max_total_tokens`` are
flags, mostly null; ``max_total_num_tokens`` and ``max_req_input_len`` are data-parallel rank 0's
alone, while ``internal_states`` has an entry a rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from gateway.engines.base import Unreadable
from gateway.engines.reading import (
    ModelCards,
    at,
    below,
    count_at,
    fingerprint,
    flag_at,
    items_at,
    scalar_at,
    smallest,
    text_at,
)
from gateway.types import Role, WorkerFacts

POOL_MARGIN = 7  # the longest prompt a pool admits is this much smaller than the pool
# Stable while a process lives, and hardly ever the same in its successor.
PROCESS_MARKS = (
    ("version",),
    ("launch_command",),
    ("random_seed",),
    ("startup_time", "load_weight"),
    ("startup_time", "scheduler_e2e"),
    ("startup_time", "tokenizer_e2e"),
)
SHARDINGS = ("dcp_size", "attn_dcp_size", "attn_cp_size")
ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}


@dataclass(frozen=True, slots=True)
class _Rank:
    """One data-parallel rank's pool and the longest prompt it admits, in tokens."""

    pool: int | None
    limit: int


def is_worker(info: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a decoded ``/server_info`` is an SGLang worker's own."""
    return isinstance(info, Mapping) and (
        "max_req_input_len" in info or "max_total_num_tokens" in info
    )


def read(
    worker: str, info: Mapping[str, Any], cards: ModelCards
) -> tuple[WorkerFacts, ...] | Unreadable:
    """Facts of one worker; one entry a DP rank where their pools differ (``worker@rank``)."""
    context = smallest(cards.max_model_len, count_at(info, "context_length"))
    limit = _stated_limit(info, context)
    if isinstance(limit, Unreadable):
        return limit
    ranks = _ranks(info, limit)
    if any(rank.limit < 1 for rank in ranks):
        return Unreadable("SGLang: a DP rank's pool is too small for any prompt")
    role = role_of(info)
    incarnation = fingerprint(
        *(scalar_at(info, *path) for path in PROCESS_MARKS),
        role, limit, context, *(rank.pool for rank in ranks),
    )  # fmt: skip
    served = text_at(info, "served_model_name")
    labels = [worker] if len(ranks) == 1 else [f"{worker}@{n}" for n in range(len(ranks))]
    return tuple(
        WorkerFacts(
            worker=label,
            engine="sglang",
            role=role,
            max_prompt_tokens=rank.limit,
            pool_tokens=rank.pool,
            context_tokens=context,
            truncates=_truncation(info),
            models=cards.names or ((served,) if served else ()),
            version=text_at(info, "version"),
            incarnation=incarnation,
            disaggregated=role is not Role.REGULAR,
            kv_checksum=flag_at(info, "disaggregation_enable_kv_checksum"),
            notes=_notes(info, limit, rank),
        )
        for label, rank in zip(labels, ranks, strict=True)
    )


def role_of(info: Mapping[str, Any]) -> Role:
    """The scheduler's role, which ``/pd_role_switch`` can change, else the one started with."""
    modes = (at(info, "internal_states", 0, "disaggregation_mode"), info.get("disaggregation_mode"))
    for mode in modes:
        if isinstance(mode, str) and mode in ROLES:
            return ROLES[mode]
    return Role.REGULAR


def _stated_limit(info: Mapping[str, Any], context: int | None) -> int | Unreadable:
    if info.get("max_req_input_len") is not None:
        admitted = below(count_at(info, "max_req_input_len"), 1)
    else:  # builds before the field: the same sum from the pool
        admitted = below(smallest(count_at(info, "max_total_num_tokens"), context), POOL_MARGIN)
        if count_at(info, "max_total_num_tokens") is None:
            admitted = None
    if admitted is None:
        return Unreadable("SGLang: /server_info shows neither max_req_input_len nor the pool")
    limit = smallest(admitted, None if context is None else context - 1)
    return limit if limit else Unreadable("SGLang: its context length leaves room for no prompt")


def _ranks(info: Mapping[str, Any], limit: int) -> tuple[_Rank, ...]:
    first = count_at(info, "max_total_num_tokens")
    states = items_at(info, "internal_states")
    pools = [count_at(state, "memory_usage", "token_capacity") for state in states]
    if not any(pools):
        return (_Rank(first, _rank_limit(info, limit, first, first)),)
    ranks = tuple(_Rank(pool, _rank_limit(info, limit, pool, pools[0] or first)) for pool in pools)
    return ranks[:1] if len(set(ranks)) == 1 else ranks


def _rank_limit(info: Mapping[str, Any], limit: int, pool: int | None, first: int | None) -> int:
    """The worker's limit, lowered where this rank's own pool is the smaller one.

    With sharded or sliding-window pools a rank's capacity counts other tokens than the limit
    does; then only its ratio to rank 0's, whose limit is stated, means something.
    """
    if pool is None:
        return limit
    if _pools_count_prompt_tokens(info):
        return min(limit, pool - POOL_MARGIN)
    if first is None or pool >= first:
        return limit
    return limit * pool // first - POOL_MARGIN


def _pools_count_prompt_tokens(info: Mapping[str, Any]) -> bool:
    sharded = any((count_at(info, name) or 1) > 1 for name in SHARDINGS)
    sharded = sharded or info.get("enable_kv_cache_sharding") is True
    windowed = any(
        at(state, "memory_usage", "token_capacity_swa") is not None
        for state in items_at(info, "internal_states")
    )
    return not sharded and not windowed


def _truncation(info: Mapping[str, Any]) -> str | None:
    """Anything but a plain no counts as a yes: the prompt would be cut in silence."""
    return None if info.get("allow_auto_truncate") in (None, False) else "allow_auto_truncate"


def _notes(info: Mapping[str, Any], limit: int, rank: _Rank) -> tuple[str, ...]:
    notes = []
    if rank.limit < limit:
        notes.append(f"the worker states {limit} tokens, but this rank's pool holds {rank.pool}")
    if not _pools_count_prompt_tokens(info):
        notes.append("sharded or sliding-window pool: its size does not compare with the limit")
    shown, total = len(items_at(info, "internal_states")), count_at(info, "dp_size") or 1
    if 0 < shown < total:
        notes.append(f"only {shown} of {total} DP ranks are shown")
    return tuple(notes)
