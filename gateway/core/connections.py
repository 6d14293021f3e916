"""How many connections clients may have, and how long one may keep us waiting."""

from __future__ import annotations

from dataclasses import dataclass

SWEEP = 1.0  # seconds between sweeps, or a quarter of the shortest deadline
SHORTEST_SWEEP = 0.05


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """Bounds on connections (None: none) and seconds.

    ``head``: from the first byte of a request, or the begin of its connection, to the last of its
    headers. ``write_idle``: for a client to take what fills its connection. ``keep_alive``: idle
    between requests.
    """

    total: int | None = None
    per_address: int | None = None
    head: float = 10.0
    write_idle: float = 60.0
    keep_alive: float = 75.0

    @property
    def sweep(self) -> float:
        """Seconds between two looks at all connections."""
        return max(SHORTEST_SWEEP, min(SWEEP, self.head / 4, self.write_idle / 4))
