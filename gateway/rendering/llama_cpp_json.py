"""JSON values as llama.cpp's template engine prints them.

Strings, order and separators are as everywhere. Numbers are C++ streams': integers of 64 bits,
floats with six significant digits, so 1.0 becomes 1 and 0.1234567 becomes 0.123457.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from gateway.rendering.common import Unrenderable

INT64 = range(-(2**63), 2**63)


def parsed(text: str) -> Any:
    """The value in a call's arguments; unlike elsewhere it need not be an object.

    Raises:
        Unrenderable: it is no JSON; the server refuses it.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Unrenderable("malformed") from None


def as_printed(value: Any) -> Any:
    """``value`` with its numbers replaced by those that Python prints as the server does.

    Raises:
        Unrenderable: Python prints no number that way (1e+06, integers beyond 64 bits).
    """
    if isinstance(value, dict):
        return {key: as_printed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_printed(item) for item in value]
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int) and value not in INT64:
        raise Unrenderable("number_format")
    return value


def _float(value: float) -> int | float:
    printed = f"{value:g}"
    for number in (float(printed), int(value) if value.is_integer() else None):
        if number is not None and str(number) == printed:
            return number
    raise Unrenderable("number_format")


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("no JSON")
