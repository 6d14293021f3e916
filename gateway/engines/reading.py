"""Strict reading of what workers answer: a value of the wrong kind is no value.

Workers, and whatever answers in their place, may send anything: HTML with status 200, a list for
an object, ``"4096"`` or ``true`` for a number. These helpers never raise; they return None, and
the adapter says what is missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.engines.base import Answer, Answers, Probe

MODELS = Probe("GET", "/v1/models")
METRICS = Probe("GET", "/metrics")
VERSION = Probe("GET", "/version")
SERVER_INFO = Probe("GET", "/server_info")

# Above any real context or pool by orders of magnitude; tokenizers state 1e30 for "no limit".
MOST_TOKENS = 2**40
BY_HAND = "set limit.max_prompt_tokens for this backend"


def at(value: Any, *path: str | int) -> Any:
    """The member of nested objects and lists at ``path``, or None."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, Mapping) else None
        else:
            fits = isinstance(value, list) and -len(value) <= step < len(value)
            value = value[step] if fits else None
    return value


def count_at(value: Any, *path: str | int) -> int | None:
    """A credible number of tokens (or blocks, or ranks): an integer from 1 to 2**40."""
    found = at(value, *path)
    if isinstance(found, bool) or not isinstance(found, int):
        return None
    return found if 1 <= found <= MOST_TOKENS else None


def text_at(value: Any, *path: str | int) -> str | None:
    """A text that is not empty."""
    found = at(value, *path)
    return found if isinstance(found, str) and found else None


def flag_at(value: Any, *path: str | int) -> bool | None:
    """A JSON true or false."""
    found = at(value, *path)
    return found if isinstance(found, bool) else None


def scalar_at(value: Any, *path: str | int) -> str | int | float | None:
    """A text or number of any kind, to tell processes apart with."""
    found = at(value, *path)
    return found if isinstance(found, (str, int, float)) else None


def items_at(value: Any, *path: str | int) -> tuple[Any, ...]:
    """The items of a list; empty where there is none."""
    found = at(value, *path)
    return tuple(found) if isinstance(found, list) else ()


def digits(text: str | None) -> int | None:
    """``count_at`` for numbers that come as text (metric labels)."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 15:
        return None
    return count_at(int(text))


def smallest(*values: int | None) -> int | None:
    """The smallest of the values that are known."""
    return min((value for value in values if value is not None), default=None)


def below(value: int | None, amount: int) -> int | None:
    """``value - amount`` where that is at least 1, else None."""
    return value - amount if value is not None and value > amount else None


def body_of(answers: Answers, probe: Probe) -> Any:
    """The decoded answer to a probe, or None."""
    answer = answers.get(probe)
    return None if answer is None else answer.json()


def fingerprint(*parts: str | float | None) -> str:
    """A short digest of what tells one process or configuration from another.

    A digest, because the parts (a launch command, say) can hold keys.
    """
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def trouble(answers: Answers, probe: Probe) -> str:
    """Why a probe's answer is of no use, for operators. Quotes nothing the worker sent."""
    return f"{probe.method} {probe.path}: {_trouble_with(answers.get(probe))}"


def _trouble_with(answer: Answer | None) -> str:
    if answer is None or answer.status == 0:
        return "no answer"
    if answer.status in (401, 403):
        return f"refused with {answer.status}; is api_key set for this backend?"
    if answer.status != 200:
        return f"status {answer.status}"
    if answer.json() is None:
        return "status 200, but no JSON"
    return "status 200, but the limit is missing or no credible number"


@dataclass(frozen=True, slots=True)
class ModelCards:
    """What ``GET /v1/models`` tells, over all its cards."""

    names: tuple[str, ...] = ()
    owners: frozenset[str] = frozenset()
    max_model_len: int | None = None


def model_cards(answers: Answers) -> ModelCards:
    """Read the OpenAI model list. ``max_model_len`` is the smallest one stated."""
    cards = items_at(body_of(answers, MODELS), "data")
    return ModelCards(
        names=tuple(name for card in cards if (name := text_at(card, "id"))),
        owners=frozenset(owner for card in cards if (owner := text_at(card, "owned_by"))),
        max_model_len=smallest(*(count_at(card, "max_model_len") for card in cards)),
    )
