"""sglang_router's mini_lb: one answer that holds every worker's ``/server_info``.

Its top-level ``internal_states`` are the decode ranks alone; the workers are in ``prefill`` and
``decode``. It tells no worker's address, so the facts are read here and no worker is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from gateway.engines.base import Unreadable
from gateway.engines.sglang_info import is_worker, role_of
from gateway.types import Role

Member = tuple[str, Mapping[str, Any]]


def is_mini_lb(info: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a decoded ``/server_info`` lists workers by role."""
    listed = isinstance(info, Mapping) and "prefill" in info and "decode" in info
    return listed and not is_worker(info)


def members(worker: str, info: Mapping[str, Any]) -> tuple[Member, ...] | Unreadable:
    """Every worker's own info, labelled ``worker#role-number``.

    One that is missing or cut makes all unreadable: it may be the smallest.
    """
    found: list[Member] = []
    for role in ("prefill", "decode"):
        listed = info.get(role)
        if not isinstance(listed, list) or not listed:
            return Unreadable(f"mini_lb lists no {role} workers")
        for number, member in enumerate(listed):
            if not is_worker(member):
                return Unreadable(f"mini_lb shows no limits of its {role} worker {number}")
            found.append((f"{worker}#{role}-{number}", _with_role(member, role)))
    return tuple(found)


def _with_role(member: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    """The worker's own word on its role, or else the list it stands in."""
    if role_of(member) is not Role.REGULAR:
        return member
    return {**member, "disaggregation_mode": role}
