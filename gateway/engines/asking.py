"""Building questions to an engine's tokeniser out of a client's request.

An oracle that leaves a part of the prompt out answers with a smaller number, which is worse than
none. So each adapter names the fields its endpoint takes, and refuses to ask when the request
sets another one that reaches the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.engines.base import OracleCall, Probe
from gateway.types import ChatPrompt, TextPrompt

# What Anthropic's own count_tokens takes, less what never reaches the prompt.
ANTHROPIC_FIELDS = ("messages", "system", "tools", "tool_choice", "thinking", "output_config")

MEDIA_PARTS = frozenset(
    {
        "image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video",
        "video_url", "file", "input_file", "document",
    }
)  # fmt: skip


class WithoutOracle:
    """For engines that have no tokenise endpoint."""

    __slots__ = ()

    def oracle(
        self,
        prompt: ChatPrompt | TextPrompt,  # noqa: ARG002
        model: str,  # noqa: ARG002
    ) -> tuple[OracleCall, ...] | None:
        """Never a question."""
        return None


def ask(path: str, body: Mapping[str, Any], count_field: str) -> OracleCall:
    """A POST of ``body`` whose answer counts in ``count_field``."""
    return OracleCall(Probe("POST", path, dict(body)), count_field)


def ask_each(
    prompt: TextPrompt, path: str, text_field: str, count_field: str, **fields: Any
) -> tuple[OracleCall, ...]:
    """One question a text of the batch, the text in ``text_field`` and ``fields`` beside it."""
    return tuple(ask(path, {**fields, text_field: text}, count_field) for text in prompt.texts)


def ask_anthropic(body: Mapping[str, Any], model: str, *more: str) -> tuple[OracleCall, ...]:
    """Anthropic's own counting endpoint, which several engines have; ``more`` fields it takes."""
    wanted = {**picked(body, (*ANTHROPIC_FIELDS, *more)), "model": model}
    return (ask("/v1/messages/count_tokens", wanted, "input_tokens"),)


def picked(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The members of ``names`` that the request sets."""
    return {name: body[name] for name in names if body.get(name) is not None}


def sets_any(body: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether the request sets one of ``names``."""
    return any(body.get(name) is not None for name in names)


def constrains_format(body: Mapping[str, Any]) -> bool:
    """Whether a ``response_format`` other than plain text is asked: some templates print it."""
    wanted = body.get("response_format")
    return wanted is not None and not (isinstance(wanted, Mapping) and wanted.get("type") == "text")


def shows_media(value: Any) -> bool:
    """Whether a content part anywhere inside is an image, audio, video or file."""
    open_values = [value]
    while open_values:
        current = open_values.pop()
        if isinstance(current, Mapping):
            kind = current.get("type")
            if isinstance(kind, str) and kind in MEDIA_PARTS:
                return True
            open_values.extend(current.values())
        elif isinstance(current, (list, tuple)):
            open_values.extend(current)
    return False
