"""OpenAI responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import marking, openai_common, prompts, sse, wire
from gateway.dialects.answers import Fold, Forward, tokens
from gateway.errors import Rejection
from gateway.types import ChatPrompt, OpaquePrompt, ParsedRequest, Prompt, Usage

# Fields that make the engine fetch earlier turns, or the prompt itself, from its own store.
_SERVER_HISTORY = ("previous_response_id", "conversation", "prompt")


class OpenAiResponses(openai_common.OpenAiErrors):
    """POST /v1/responses."""

    name = "openai_responses"
    operation = "chat"
    paths: Mapping[str, str] = {"/v1/responses": "responses"}
    subject = "input"

    def parse(self, path: str, raw: bytes) -> ParsedRequest:
        """See ``Dialect.parse``."""
        body = wire.decode_object(raw)
        if wire.flag(body, "background"):
            raise wire.malformed(
                "Background responses are not offered here: no one would check their answer.",
                "background",
            )
        return ParsedRequest(
            dialect=self.name,
            path=path,
            raw=raw,
            body=body,
            model=wire.required_name(body, "model"),
            stream=wire.flag(body, "stream") is True,
            prompt=_prompt(self.name, body),
            max_output_tokens=wire.whole_number(body, "max_output_tokens"),
            wants_usage=True,
        )

    def marked(self, request: ParsedRequest, text: str, /) -> ParsedRequest | None:
        """In the instructions; where there are none, in a system message that begins the input."""
        given = request.body
        if given.get("instructions") is None and marking.has_system_turn(given.get("input")):
            return marking.end_system_turn(request, "input", text, "input_text")
        return marking.end_system_member(request, "instructions", text, "input_text")

    def fold(self, _request: ParsedRequest, /) -> Fold:
        """One response object, whole or as the data of its last event."""
        return ResponseFold()

    def stream_error(self, rejection: Rejection) -> bytes:
        """An ``error`` event, its members both nested and flat: servers differ, clients too."""
        error = openai_common.error_members(rejection, self.subject)
        body = {**error, "type": "error", "error": error}
        return sse.event(bytes(wire.encode(body)), "error")


def _prompt(dialect: str, body: Mapping[str, Any]) -> Prompt:
    if any(body.get(name) is not None for name in _SERVER_HISTORY):
        return OpaquePrompt("server_history")
    given = body.get("input")
    if not isinstance(given, str):
        items = wire.objects(body, "input")
        if any(item.get("type") == "item_reference" for item in items):
            return OpaquePrompt("server_history")
    if body.get("truncation") not in (None, "disabled"):
        return OpaquePrompt("engine_truncates")
    return prompts.truncation(body) or ChatPrompt(dialect, body)


class ResponseFold(Fold):
    """Reads response objects; the last one tells how it ended and what it used."""

    members = ("status", "usage", "incomplete_details", "response", "output")
    markers = (
        b"response.completed",
        b"response.incomplete",
        b"response.failed",
        b"response.cancelled",
    )

    def __init__(self) -> None:
        super().__init__()
        self._usage: Usage | None = None

    def body(self, value: Mapping[str, Any]) -> None:
        """A response object, whole or inside an event."""
        self.identify(value)
        output = value.get("output")
        if isinstance(output, list):
            self.spoke = self.spoke or any(map(_speaks, output))
        status, details = value.get("status"), value.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        match status:
            case "completed" | "incomplete":
                self.terminal = True
                self.finish[0] = reason if isinstance(reason, str) else status
            case "failed" | "cancelled":
                self.failed = True
        if isinstance(usage := value.get("usage"), dict):
            cached = usage.get("input_tokens_details")
            self._usage = Usage(
                prompt_tokens=tokens(usage, "input_tokens"),
                completion_tokens=tokens(usage, "output_tokens"),
                cached_tokens=tokens(cached, "cached_tokens") if isinstance(cached, dict) else None,
            )

    def event(self, value: Mapping[str, Any]) -> Forward:
        """Events of the response's life carry it whole; all others are deltas."""
        response = value.get("response")
        if isinstance(response, dict):
            self.body(response)
            self.failed |= value.get("type") in ("response.failed", "response.cancelled")
        return Forward.KEEP

    def usage(self) -> Usage | None:
        """The usage of the last response object that had one."""
        return self._usage


def _speaks(item: Any) -> bool:
    """Whether an output item holds something. Calls of any kind do; messages may be empty."""
    if not isinstance(item, dict):
        return False
    if item.get("type") not in ("message", "reasoning"):
        return True
    parts = [part for name in ("content", "summary") for part in _listed(item.get(name))]
    said = (part.get(name) for part in parts for name in ("text", "refusal"))
    return any(said) or bool(item.get("encrypted_content"))


def _listed(value: Any) -> list[Mapping[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
