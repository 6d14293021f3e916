"""Shares with their uncertainty."""

from __future__ import annotations

from typing import Any

from gateway.core.probe import wilson


def share(hits: int, of: int) -> dict[str, Any]:
    """A share in percent with Wilson's 95% interval."""
    if not of:
        return {"of": 0}
    found = wilson(hits, of)
    percents = {"percent": found.share, "low": found.low, "high": found.high}
    return {"of": of, "hits": hits} | {name: 100 * value for name, value in percents.items()}


def told(found: dict[str, Any]) -> str:
    """For a table: 92.1% (90.2 to 93.7)."""
    if not found["of"]:
        return "-"
    digits = 1 if found["percent"] >= 1 else 3
    return (
        f"{found['percent']:.{digits}f}% ({found['low']:.{digits}f} to {found['high']:.{digits}f})"
    )
