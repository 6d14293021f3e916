"""Asks both legs of a disaggregated engine what they have counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.core.capacity import Snapshot
from gateway.edge.probing import Prober
from gateway.engines import sglang_books
from gateway.types import Books, Role

LEGS = (Role.PREFILL, Role.DECODE)


async def read_books(snapshot: Snapshot, prober: Prober) -> Mapping[Role, Books] | None:
    """The sums of each leg's workers; None where one of them does not tell: half a leg's counts
    would make the other leg look wrong.

    Decode is asked first: what it counted by then, prefill had counted before.
    """
    roles = {
        worker: {fact.role for fact in seen.facts} & set(LEGS)
        for worker, seen in snapshot.workers.items()
    }
    if not all(roles.values()) or set().union(*roles.values()) != set(LEGS):
        return None
    found: dict[Role, list[Books | None]] = {}
    for role in (Role.DECODE, Role.PREFILL):
        here = [worker for worker, its in roles.items() if role in its]
        pages = await asyncio.gather(
            *(prober.ask(worker, (sglang_books.PROBE,)) for worker in here)
        )
        found[role] = [
            sglang_books.books(page, role, alone=len(roles[worker]) == 1)
            for worker, page in zip(here, pages, strict=True)
        ]
    sums = {role: _sum(each) for role, each in found.items()}
    return {role: leg for role, leg in sums.items() if leg} if all(sums.values()) else None


def _sum(each: list[Books | None]) -> Books | None:
    told = [books for books in each if books is not None]
    if len(told) < len(each):
        return None
    failed = [books.failed for books in told if books.failed is not None]
    return Books(
        sum(books.requests for books in told),
        sum(books.prompt_tokens for books in told),
        sum(failed) if failed else None,
    )
