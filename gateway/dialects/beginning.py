"""How a prompt begins, for telling which requests share a prefix that an engine may have cached.

A conversation keeps its system message and its first user message from turn to turn, so these
stand for it. Of each part only the first bytes count: two prompts that differ later share those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.dialects.prompt_text import prompt_text
from gateway.types import ParsedRequest, TokenIdPrompt

PART = 4096  # bytes of one part that count
IDS = 1024  # token ids that count
_BEFORE = ("system", "instructions")
_TURNS = ("messages", "input", "prompt", "text")
_TOKEN_IDS = ("prompt", "input_ids", "input")


def beginning(request: ParsedRequest) -> bytes:
    """The first bytes of the system message and of the first user message.

    Of plain texts the first bytes, of token ids the first of them; empty where there is neither.
    """
    body = request.body
    if isinstance(request.prompt, TokenIdPrompt):
        return next((_ids(body[name]) for name in _TOKEN_IDS if body.get(name)), b"")
    parts = [_text({name: body[name]}) for name in _BEFORE if name in body]
    for name in _TURNS:
        parts += [_text({name: turn}) for turn in _opening(body.get(name))]
    return msgspec.json.encode(parts) if any(parts) else b""


def user_of(request: ParsedRequest) -> str:
    """Whom the client says the request is for; empty where it does not say."""
    metadata = request.body.get("metadata")
    of_messages = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    told = request.body.get("user") or of_messages
    return told if isinstance(told, str) else ""


def _opening(value: Any) -> Iterator[Any]:
    """The turns up to the first of a user; all of what has no turns."""
    if not isinstance(value, list):
        if value is not None:
            yield value
        return
    for turn in value:
        yield turn
        if not isinstance(turn, Mapping) or turn.get("role") == "user":
            return


def _text(member: Mapping[str, Any]) -> str:
    kept, room = [], PART
    for said in prompt_text(member):
        kept.append(said.text[:room])
        room -= len(kept[-1])
        if room <= 0:
            break
    return "".join(kept).encode("utf-8", "replace")[:PART].decode("utf-8", "replace")


def _ids(value: Any) -> bytes:
    first = value[0] if isinstance(value[0], list) else value
    return msgspec.json.encode(first[:IDS])
