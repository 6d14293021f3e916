"""Text to values and back: durations, sizes, addresses, URLs.

Every parser raises ``ValueError`` with a message for the operator; none echoes what may hold a
password.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "": 1, "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip
_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>[A-Za-z]*)", re.ASCII)
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)
_NUMERIC_HOST = re.compile(r"[0-9.]+", re.ASCII)
_MAX_DIGITS = 18  # beyond it a number is a typing error, and int() of thousands of digits raises


@dataclass(frozen=True, slots=True)
class HostPort:
    """An address to listen on. Port 0 lets the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def duration(value: object) -> float:
    """Seconds of ``100ms``, ``10s``, ``2m``, ``24h``, ``7d``."""
    number, unit = _quantity(value) or ("", "")
    if unit not in _SECONDS:
        raise ValueError("must be a duration with its unit (ms, s, m, h or d), such as 10s")
    return float(number) * _SECONDS[unit]


def duration_text(seconds: float) -> str:
    """The shortest way to write a duration that ``duration`` reads back."""
    for unit in ("h", "m", "s"):
        if seconds and math.fmod(seconds, _SECONDS[unit]) == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:g}s" if seconds == 0 or seconds > 1 else f"{seconds * 1000:g}ms"


def instant(value: object) -> datetime:
    """A moment, such as ``2026-12-31T00:00:00Z``. One without its offset would be a guess."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    problem = "must be a date and time with its offset from UTC, such as 2026-12-31T00:00:00Z"
    if not isinstance(value, str) or not _INSTANT.fullmatch(value):
        raise ValueError(problem)
    try:
        return datetime.fromisoformat(value)
    except ValueError:  # month 13 and the like
        raise ValueError(problem) from None


def size(value: object) -> int:
    """Bytes of a whole number, or of text such as ``32MiB`` or ``10MB``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number, unit = _quantity(value) or ("", "?")
    if unit not in _BYTES:
        raise ValueError("must be a number of bytes, or a size such as 32MiB or 10MB")
    amount = float(number) * _BYTES[unit]
    if not amount.is_integer():
        raise ValueError("must be a whole number of bytes")
    return int(amount)


def size_text(amount: int) -> str:
    """The shortest way to write a size that ``size`` reads back."""
    for unit in ("GiB", "MiB", "KiB"):
        if amount and amount % _BYTES[unit] == 0:
            return f"{amount // _BYTES[unit]}{unit}"
    return str(amount)


def host_port(value: object) -> HostPort:
    """An address such as ``127.0.0.1:8080``, ``[::1]:8080`` or ``localhost:8080``."""
    if not isinstance(value, str):
        # a TypeError would not reach pydantic's list of faults
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8080")  # noqa: TRY004
    host, colon, port = value.rpartition(":")
    if not colon or not host:
        raise ValueError("must be HOST:PORT; write 0.0.0.0 for every interface")
    return HostPort(_host(host), _port(port))


def base_url(value: object) -> str:
    """An engine's address without a trailing slash; the client's path is appended to it."""
    if not isinstance(value, str) or not value.isascii() or re.search(r"[\x00-\x20\x7f\\]", value):
        raise ValueError("must be a URL such as http://10.0.0.1:30000")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("is not a valid URL: its host or port cannot be read") from None
    if parts.scheme not in {"http", "https"}:
        raise ValueError("must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or password; use api_key")
    if not parts.hostname or port == 0:
        raise ValueError("must name a host, and a port above 0 if any")
    if "?" in value or "#" in value:
        raise ValueError("must not hold a query or a fragment")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        raise ValueError("must not end in /v1: the path of each request is appended")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _quantity(value: object) -> tuple[str, str] | None:
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if not found or len(found["number"]) > _MAX_DIGITS:
        return None
    return found["number"], found["unit"]


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            raise ValueError("holds no valid IPv6 address between the brackets") from None
    if ":" in text:
        raise ValueError("must have an IPv6 address in brackets: [::1]:8080")
    if not _HOST.fullmatch(text):
        raise ValueError("must begin with a host name or an IP address")
    if _NUMERIC_HOST.fullmatch(text):
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            raise ValueError("does not begin with a valid IPv4 address") from None
    return text


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or int(text) > 65535:
        raise ValueError("must end in a port from 0 to 65535")
    return int(text)
