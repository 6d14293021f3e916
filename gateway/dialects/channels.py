"""The text of an answer, apart by where a client would show it: every string counts.

A channel is one text that grows from event to event: a choice's content, its reasoning, a tool
call's arguments. Nothing here knows which members hold text. All strings do, except those of
``SILENT`` members; where an engine adds a member, its text is seen too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Key = tuple[object, ...]
Path = tuple[str | int, ...]

# Members whose strings are names, ids and constants, never generated text.
SILENT = frozenset(
    {
        "created", "finish_reason", "id", "item_id", "logprob", "model", "object", "response_id",
        "role", "service_tier", "status", "stop_reason", "system_fingerprint", "type", "usage",
    }
)  # fmt: skip

# Members that hold a text token by token, with probabilities and alternatives.
TOKENWISE = frozenset(
    {
        "logprobs", "prompt_logprobs", "input_token_logprobs", "input_top_logprobs",
        "output_token_logprobs", "output_top_logprobs",
    }
)  # fmt: skip

# Which of several texts of a kind an event belongs to.
_PLACES = ("index", "output_index", "content_index", "summary_index")
# Members that only wrap what an event adds: Anthropic opens a block in one, continues in another.
_WRAPPERS = frozenset({"delta", "message", "content_block"})
_HOLDS_TEXT = (str, dict, list)


class Piece(NamedTuple):
    """A text in an event or a body. ``key`` names its channel, None where it is all of its own.

    ``tokenwise``: the text was joined from the tokens at ``path``, which holds no string.
    """

    key: Key | None
    path: Path
    text: str
    tokenwise: bool = False


def pieces_of_event(value: Any) -> list[Piece]:
    """The texts of one event's data, in order."""
    found: list[Piece] = []
    _collect(value, _lane(value), (), found)
    return found


def pieces_of_body(value: Any) -> list[Piece]:
    """The texts of a whole JSON value, each by itself."""
    found: list[Piece] = []
    _collect(value, None, (), found)
    return found


def _lane(value: Any) -> Key | None:
    """What later events continue: None where this one says all, as a copy of a finished text."""
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if isinstance(kind, str):
        if kind.endswith(".delta"):
            return (kind, *(value.get(name) for name in _PLACES))
        if kind not in ("content_block_delta", "content_block_start"):
            return None
    return (value.get("index"),)


def _collect(value: Any, key: Key | None, path: Path, found: list[Piece]) -> None:
    if isinstance(value, str):
        if value:
            found.append(Piece(key, path, value))
    elif isinstance(value, dict):
        for name, member in value.items():
            if name not in SILENT and isinstance(member, _HOLDS_TEXT):
                inner = key if key is None or name in _WRAPPERS else (*key, name)
                collect = _collect_tokens if name in TOKENWISE else _collect
                collect(member, inner, (*path, name), found)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            if isinstance(item, _HOLDS_TEXT):
                index = item.get("index", place) if isinstance(item, dict) else place
                inner = key if key is None else (*key, index)
                _collect(item, inner, (*path, place), found)


def _collect_tokens(value: Any, key: Key | None, path: Path, found: list[Piece]) -> None:
    """Each list of tokens as one text; all of them stand for the member at ``path``."""
    lists = value.items() if isinstance(value, dict) else [("", value)]
    for name, tokens in lists:
        if isinstance(tokens, list) and (text := "".join(map(_token, tokens))):
            inner = key if key is None else (*key, name)
            found.append(Piece(inner, path, text, tokenwise=True))


def _token(item: Any) -> str:
    """The token at one position: the first string in it.

    Chat: ``{"token": ...}``; completions: the string; SGLang: ``[logprob, id, text]``; prompt
    logprobs of vLLM: ``{id: {"decoded_token": ...}}``.
    """
    if isinstance(item, str):
        return item
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return next(filter(None, map(_token, parts)), "")
