"""Incidents, exchanged: each replica appends its own to a capped stream, and reads the others'."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.edge.incidents import KEPT, Incidents
from gateway.edge.replicas.line import Group, Line, Stream

_PAGES = 30  # in one round: all that are kept


class SharedIncidents:
    """This replica's side of the stream."""

    def __init__(self, line: Line, group: Group, incidents: Incidents) -> None:
        self._stream = Stream(line, group, "incidents", KEPT)
        self._incidents = incidents

    @property
    def unreadable(self) -> int:
        """Entries that are not of this group, or were changed."""
        return self._stream.unreadable

    async def exchange(self) -> bool:
        """Tell the own ones, hear of others'. Raises ``StoreTrouble``.

        One whose telling failed is told again: who reads it twice keeps it once.
        """
        untold = self._incidents.untold
        while untold:
            incident = untold[0]
            await self._stream.append(msgspec.json.encode(incident))
            if untold and untold[0] is incident:  # not pushed out meanwhile by newer ones
                untold.popleft()
        async for entry in self._stream.new(_PAGES):
            self._incidents.hear(msgspec.json.decode(entry, type=dict[str, Any]))
        return self._stream.more

    async def resume(self) -> None:
        """The store answers again. Raises ``StoreTrouble``."""
        await self._stream.resume()
