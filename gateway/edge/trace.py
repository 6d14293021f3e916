"""The place of one exchange in a distributed trace (W3C Trace Context)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEADERS = ("traceparent", "tracestate")


@dataclass(frozen=True, slots=True)
class Trace:
    """Ids, made before the request is sent on, so that the engine's spans find their parent.

    ``trace_id`` has 128 bits; the others have 64: ``span_id`` is the exchange's, ``engine_id``
    that of the call to the engine within it, ``parent_id`` the caller's where it is trusted.
    ``state`` is the caller's tracestate.
    """

    trace_id: int
    span_id: int
    engine_id: int
    sampled: bool
    parent_id: int | None = None
    state: str = ""

    @property
    def hex(self) -> str:
        """The trace's id as other tools show it."""
        return f"{self.trace_id:032x}"

    def headers(self) -> Mapping[str, str]:
        """What the engine is told."""
        flags = "01" if self.sampled else "00"
        told = {"traceparent": f"00-{self.hex}-{self.engine_id:016x}-{flags}"}
        return {**told, "tracestate": self.state} if self.state else told
