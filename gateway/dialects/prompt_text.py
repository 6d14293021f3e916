"""The text of a prompt, in the order engines render it: what a tenant said, what a model said.

Only strings are read, whatever the dialect calls the member they are in. Of tools the names of
members are text too, for engines render the JSON. Media are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.types import OpaquePrompt, ParsedRequest, TokenIdPrompt

# Members that hold the prompt, in the order engines render them.
PROMPT_MEMBERS = ("tools", "system", "instructions", "messages", "input", "prompt", "text")

_WITH_IDS = ("input", "prompt")  # members that may be token ids

# Reasons for which a prompt is, wholly or in part, not in the request's text.
_ELSEWHERE = frozenset({"server_history", "input_ids", "input_embeds", "prompt_embeds"})
_SCHEMAS = frozenset({"tools", "functions"})
_NOT_TEXT = frozenset(
    {
        "audio_url", "cache_control", "call_id", "encrypted_content", "file", "file_data", "id",
        "image_url", "input_audio", "media_type", "role", "signature", "source", "tool_call_id",
        "tool_use_id", "type", "video_url",
    }
)  # fmt: skip
_BY_MODEL = frozenset({"reasoning", "function_call"})  # items of responses


class Said(NamedTuple):
    """A stretch of a prompt and whether a model wrote it, in an earlier turn."""

    text: str
    by_model: bool


def is_readable(request: ParsedRequest) -> bool:
    """Whether the request shows its prompt as text, all of it."""
    prompt = request.prompt
    if isinstance(prompt, OpaquePrompt):
        return prompt.reason not in _ELSEWHERE
    return not isinstance(prompt, TokenIdPrompt)


def prompt_text(body: Mapping[str, Any]) -> Iterator[Said]:
    """The prompt's texts in order, however deeply they are nested."""
    for member in PROMPT_MEMBERS:
        yield from _said(body.get(member), schema=member in _SCHEMAS)


def all_text(body: Mapping[str, Any]) -> Iterator[str]:
    """The prompt's texts, and then all else that a request says: whatever is not foreign to it."""
    yield from (said.text for said in prompt_text(body))
    others = {name: value for name, value in body.items() if name not in PROMPT_MEMBERS}
    yield from (said.text for said in _said(others, schema=True))


def prompt_parts(body: Mapping[str, Any]) -> list[str]:
    """The prompt's texts in order, or its token ids: a longer prompt, joined, begins as this does.

    What engines do not render is left out, for clients change it from turn to turn (marks for
    caches, ids), and how the texts were divided is not to count: who reads the parts, joins them.
    """
    texts = [said.text for said in prompt_text(body)]
    if any(texts):
        return texts
    return [msgspec.json.encode([body.get(member) for member in _WITH_IDS]).decode()]


def _said(root: Any, *, schema: bool) -> Iterator[Said]:
    left: list[tuple[Any, bool]] = [(root, False)]
    while left:
        value, by_model = left.pop()
        if isinstance(value, str):
            yield Said(value, by_model)
        elif isinstance(value, list) and not (value and isinstance(value[0], int)):  # token ids
            left += [(item, by_model) for item in reversed(value)]
        elif isinstance(value, dict):
            by_model = by_model or _is_by_model(value)
            left += [(part, by_model) for part in _parts(value, schema=schema)]


def _is_by_model(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in _BY_MODEL


def _parts(value: Mapping[str, Any], *, schema: bool) -> list[Any]:
    """What an object holds of a prompt, the last first."""
    if schema:
        return [part for pair in value.items() for part in pair][::-1]
    return [part for name, part in value.items() if name not in _NOT_TEXT][::-1]
