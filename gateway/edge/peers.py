"""What processes that serve together must know of each other for one of them to probe.

How busy a backend is at the others, so that a probe does not run beside their traffic; and which
processes of a canary were found clean, so that it serves at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gateway.core.probe_schedule import vouched
from gateway.edge.backends import Backend


@dataclass(frozen=True, slots=True)
class Word:
    """By backend: requests it has or that wait for it, and the engine last cleared, if any."""

    loads: Mapping[str, int] = field(default_factory=dict)
    cleared: Mapping[str, str] = field(default_factory=dict)


def tell(backends: Iterable[Backend]) -> Word:
    """This process's word."""
    backends = tuple(backends)
    return Word(
        {backend.name: backend.load for backend in backends},
        {one.name: cleared for one in backends if (cleared := one.past.probed.cleared)},
    )


def hear(backends: Iterable[Backend], others: Word) -> None:
    """Take the others' word. A canary is cleared as they found, if it is the same engine here."""
    for backend in backends:
        backend.load_elsewhere = others.loads.get(backend.name, 0)
        cleared = others.cleared.get(backend.name)
        if backend.held and cleared and cleared == backend.digest:
            backend.past.probed = vouched(backend.past.probed, cleared)


def together(words: Iterable[Word]) -> Word:
    """Several processes' words as one: loads added, and any that cleared an engine."""
    sums = Word()
    for word in words:
        loads = {name: sums.loads.get(name, 0) + load for name, load in word.loads.items()}
        sums = replace(
            sums, loads={**sums.loads, **loads}, cleared={**sums.cleared, **word.cleared}
        )
    return sums
