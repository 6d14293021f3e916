"""One bucket of the cell rate algorithm, asked as a store asks it."""

from __future__ import annotations

from gateway.limits.gcra import Decision, Quota, Tat, ahead, decide, settle, standing


def step(state: Tat | None, now: float, cost: int, quota: Quota) -> tuple[Tat | None, Decision]:
    """Ask, and take what is allowed. A refusal leaves the state as it was."""
    decision = decide(ahead(state, now), cost, quota)
    return settle(state, now, cost, quota) if decision.allowed else state, decision


def peek(state: Tat | None, now: float, quota: Quota) -> Decision:
    """What is told without asking."""
    return standing(ahead(state, now), quota)
