"""Anthropic messages, and the counting of their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import marking, prompts, sse, wire
from gateway.dialects.answers import Fold, Forward, tokens
from gateway.dialects.base import ErrorAnswer
from gateway.dialects.skeleton import BaseDialect
from gateway.errors import Kind, PromptTooLong, Rejection
from gateway.types import ChatPrompt, ParsedRequest, Usage

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_COUNT = "/v1/messages/count_tokens"


class AnthropicMessages(BaseDialect):
    """POST /v1/messages and /v1/messages/count_tokens."""

    name = "anthropic_messages"
    operation = "chat"
    paths: Mapping[str, str] = {"/v1/messages": "messages", _COUNT: "token counting"}

    def parse(self, path: str, raw: bytes) -> ParsedRequest:
        """See ``Dialect.parse``. Images are left to the renderer, which knows the engine."""
        body = wire.decode_object(raw)
        wire.objects(body, "messages")
        return ParsedRequest(
            dialect=self.name,
            path=path,
            raw=raw,
            body=body,
            model=wire.required_name(body, "model"),
            stream=wire.flag(body, "stream") is True,
            prompt=prompts.truncation(body) or ChatPrompt(self.name, body),
            max_output_tokens=wire.whole_number(body, "max_tokens"),
            wants_usage=True,
            generates=path != _COUNT,
            counts_only=path == _COUNT,
        )

    def marked(self, request: ParsedRequest, text: str, /) -> ParsedRequest | None:
        """In ``system``."""
        return marking.end_system_member(request, "system", text, "text")

    def fold(self, _request: ParsedRequest, /) -> Fold:
        """A message, whole or in events, or a bare count."""
        return MessageFold()

    def error(self, rejection: Rejection) -> ErrorAnswer:
        """The refusal in Anthropic's shape; from 500 up with our code, for which it has no type."""
        kind = rejection.kind
        fallback = "invalid_request_error" if kind.status < 500 else "api_error"
        error: dict[str, Any] = {
            "type": _TYPES.get(kind.status, fallback),
            "message": _message(rejection),
        }
        if kind.status >= 500:
            error["code"] = kind.code
        if kind is Kind.WITHHELD:
            error |= {"type": "upstream_integrity", "incident": rejection.incident}
        return ErrorAnswer(kind.status, bytes(wire.encode({"type": "error", "error": error})))

    def stream_error(self, rejection: Rejection) -> bytes:
        """The refusal as an ``error`` event; no message_stop follows."""
        return sse.event(self.error(rejection).body, "error")


def _message(rejection: Rejection) -> str:
    if rejection.too_long is not None:
        return too_long_message(rejection.too_long)
    if rejection.param is not None and rejection.param not in rejection.message:
        return f"{rejection.param}: {rejection.message}"
    return rejection.message


def too_long_message(too_long: PromptTooLong) -> str:
    """Anthropic's sentence to the letter; a limit that is not the engine's is named after it.

    Where counting stopped early the number is a lower bound; the sentence stays as clients parse
    it, and the header ``x-poolgate-prompt-tokens`` tells the difference.
    """
    engine = too_long.limited_by == "engine"
    added = "" if engine else f" (the maximum is set by the {too_long.limited_by})"
    return f"prompt is too long: {too_long.tokens} tokens > {too_long.limit} maximum{added}"


class MessageFold(Fold):
    """Adds up what engines report as the prompt: its uncached, cached and newly cached part.

    llama.cpp and SGLang leave the cached part out of ``input_tokens``; vLLM opens a stream with all
    of it and may take the cached part out at its end, down to zero. SGLang can open a stream with
    zeros and correct them at its end. Zeros alone say nothing.
    """

    members = ("usage", "input_tokens", "stop_reason", "delta", "message", "content")
    markers = (b"message_start", b"message_delta", b"message_stop")

    _PARTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")

    def __init__(self) -> None:
        super().__init__()
        self._prompt: dict[str, int] = {}
        self._completion: int | None = None

    def body(self, value: Mapping[str, Any]) -> None:
        """A message, or the answer of token counting: its usage bare."""
        self.identify(value)
        self.spoke = self.spoke or bool(value.get("content"))
        usage = value.get("usage")
        self._add(usage if isinstance(usage, dict) else value)
        self._stop(value)

    def event(self, value: Mapping[str, Any]) -> Forward:
        """The three events that frame a message."""
        match value.get("type"):
            case "message_start" if isinstance(message := value.get("message"), dict):
                self.body(message)
            case "message_delta":
                self.body(value)
                if isinstance(delta := value.get("delta"), dict):
                    self._stop(delta)
            case "message_stop":
                self.terminal = True
        return Forward.KEEP

    def _stop(self, value: Mapping[str, Any]) -> None:
        if isinstance(reason := value.get("stop_reason"), str):
            self.finish[0] = reason

    def _add(self, usage: Mapping[str, Any]) -> None:
        parts = {
            name: number for name in self._PARTS if (number := tokens(usage, name)) is not None
        }
        if any(parts.values()) or not self._prompt:
            self._prompt |= parts
        completion = tokens(usage, "output_tokens")
        self._completion = self._completion if completion is None else completion

    def usage(self) -> Usage | None:
        """The prompt is the sum of its parts; None before any part was reported."""
        prompt = sum(self._prompt.values()) or None
        if prompt is None and self._completion is None:
            return None
        return Usage(prompt, self._completion, self._prompt.get("cache_read_input_tokens"))
