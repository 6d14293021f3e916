"""Prompts given as text or token ids: the shapes shared by several endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects.wire import malformed
from gateway.errors import Rejection
from gateway.types import OpaquePrompt, TextPrompt, TokenIdPrompt

# No vocabulary is this large. Engines have died of ids that overflow their integers.
HIGHEST_POSSIBLE_ID = 2**31 - 1


def text_or_ids(
    value: Any, name: str, add_special_tokens: bool | None = None
) -> TextPrompt | TokenIdPrompt:
    """A string, a list of strings, a list of token ids, or a list of such lists.

    Raises ``Rejection`` (MALFORMED) for anything else: an empty list, a mixed one, an id that is
    no id. Empty strings pass; what they become is the tokenizer's matter.
    """
    if isinstance(value, str):
        return TextPrompt((value,), add_special_tokens)
    if isinstance(value, list):
        kinds = set(map(type, value))
        if kinds == {str}:
            return TextPrompt(tuple(value), add_special_tokens)
        if kinds == {int}:
            return _ids([value], name)
        if kinds == {list}:
            return _ids(value, name)
    raise malformed(
        f"The field '{name}' must be a string, a list of strings, a list of token ids, or a list of"
        " lists of token ids; no list may be empty.",
        name,
    )


def refuse_empty(value: Any, name: str) -> None:
    """Refuse a prompt, or one of several, that is an empty text: SGLang's server dies of it.

    Raises ``Rejection`` (MALFORMED).
    """
    if value == "" or (isinstance(value, list) and "" in value):
        raise malformed(f"No prompt in '{name}' may be empty.", name)


def _ids(prompts: list[list[Any]], name: str) -> TokenIdPrompt:
    if any(set(map(type, ids)) != {int} for ids in prompts):
        raise _not_ids(name)
    highest = max(map(max, prompts))
    if min(map(min, prompts)) < 0 or highest > HIGHEST_POSSIBLE_ID:
        raise _not_ids(name)
    return TokenIdPrompt(tuple(map(len, prompts)), highest)


def _not_ids(name: str) -> Rejection:
    return malformed(
        f"The field '{name}' must hold token ids: lists of integers from 0 to"
        f" {HIGHEST_POSSIBLE_ID}, none empty.",
        name,
    )


def items(prompt: object) -> int:
    """How many prompts the request holds."""
    match prompt:
        case TextPrompt(texts):
            return len(texts)
        case TokenIdPrompt(lengths):
            return len(lengths)
        case _:
            return 1


def truncation(body: Mapping[str, Any]) -> OpaquePrompt | None:
    """vLLM's fields by which the engine cuts the prompt in silence, where one is set."""
    if body.get("truncate_prompt_tokens") is None and body.get("truncation_side") is None:
        return None
    return OpaquePrompt("engine_truncates")
