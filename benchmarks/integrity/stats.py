"""Shares with their uncertainty."""

from __future__ import annotations

from math import sqrt
from typing import Any

Z = 1.96  # 95%


def share(hits: int, of: int) -> dict[str, Any]:
    """A share in percent with Wilson's 95% interval."""
    if not of:
        return {"of": 0}
    p = hits / of
    middle = (p + Z**2 / (2 * of)) / (1 + Z**2 / of)
    half = Z / (1 + Z**2 / of) * sqrt(p * (1 - p) / of + Z**2 / (4 * of**2))
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return {"of": of, "hits": hits, "percent": 100 * p, "low": 100 * low, "high": 100 * high}


def told(found: dict[str, Any]) -> str:
    """For a table: 92.1% (90.2 to 93.7)."""
    if not found["of"]:
        return "-"
    digits = 1 if found["percent"] >= 1 else 3
    return (
        f"{found['percent']:.{digits}f}% ({found['low']:.{digits}f} to {found['high']:.{digits}f})"
    )
