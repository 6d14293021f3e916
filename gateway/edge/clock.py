"""The wall clock, on which processes agree that know nothing of each other."""

from __future__ import annotations

from datetime import UTC, datetime


def wall_clock() -> float:
    """Seconds since 1970."""
    return datetime.now(UTC).timestamp()
