"""Whose prompt has as many tokens as an engine says this one has: of those it ran meanwhile.

Where an engine keeps its own ids (SGLang in ``/v1/messages``), answers that changed places show by
their usage alone: each reports the other's prompt. A count that differs from ours and is that of a
prompt which ran at the same time is no drift of a template.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain

from msgspec import Struct

ENDED_KEPT = 256  # that ended lately; one that ran beside this one may be over before it


class Run(Struct, eq=False, gc=False):
    """A request at a backend. ``count``: its prompt's exact tokens, once they are known.

    ``began`` and ``ended`` are places in the order of all beginnings and ends there.
    """

    began: int
    count: int | None = None
    ended: int | None = None


@dataclass(slots=True)
class Neighbours:
    """The requests of one backend, those that run and the last that ended."""

    _running: dict[int, Run] = field(default_factory=dict)
    _ended: deque[Run] = field(default_factory=lambda: deque(maxlen=ENDED_KEPT))
    _places: int = 0

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)

    def begin(self) -> Run:
        """A request that goes to the backend now."""
        self._places += 1
        run = self._running[self._places] = Run(self._places)
        return run

    def end(self, run: Run) -> None:
        """Its answer is over."""
        self._places += 1
        run.ended = self._places
        del self._running[run.began]
        self._ended.append(run)

    def has(self, count: int, run: Run) -> bool:
        """Whether a prompt of so many tokens ran while ``run`` did. About 3 us for a hundred."""
        end = self._places + 1 if run.ended is None else run.ended
        return any(
            other.count == count
            and other is not run
            and other.began < end
            and (other.ended is None or other.ended > run.began)
            for other in chain(self._running.values(), self._ended)
        )
