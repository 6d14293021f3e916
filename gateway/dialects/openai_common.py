"""What the OpenAI-shaped endpoints share: refusals, usage, choices and stream options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import prompts, sse, wire
from gateway.dialects.answers import Fold, Forward, tokens
from gateway.dialects.base import ErrorAnswer
from gateway.dialects.skeleton import BaseDialect
from gateway.errors import Kind, PromptTooLong, Rejection
from gateway.types import ParsedRequest, Prompt, Usage

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_LIMITERS = {"engine": "the engine's KV pool"}


# --- refusals ---------------------------------------------------------------------------------


def too_long_message(too_long: PromptTooLong, subject: str) -> str:
    """OpenAI's sentences, by whose wording clients tell this refusal from others, and whose limit.

    ``subject`` is what is too long: the field that holds the prompt.
    """
    more = " or more" if too_long.at_least else ""
    return (
        f"This model's maximum context length is {too_long.limit} tokens. However, your {subject}"
        f" resulted in {too_long.tokens} tokens{more}. Please reduce the length of the {subject}."
        f" The limit is set by {_LIMITERS.get(too_long.limited_by, f'the {too_long.limited_by}')}."
    )


def error_members(rejection: Rejection, subject: str) -> dict[str, Any]:
    """The members of OpenAI's ``error`` object."""
    kind = rejection.kind
    if kind is Kind.WITHHELD:
        return {
            "message": rejection.message,
            "type": "upstream_integrity",
            "code": kind.code,
            "incident": rejection.incident,
        }
    fallback = "invalid_request_error" if kind.status < 500 else "server_error"
    message, param = rejection.message, rejection.param
    if rejection.too_long is not None:
        message, param = too_long_message(rejection.too_long, subject), subject
    return {
        "message": message,
        "type": _TYPES.get(kind.status, fallback),
        "param": param,
        "code": kind.code,
    }


class OpenAiErrors(BaseDialect):
    """Refusals as clients of OpenAI's endpoints expect them."""

    subject: str  # the field that holds the prompt

    def error(self, rejection: Rejection) -> ErrorAnswer:
        """The refusal as a JSON answer."""
        body = {"error": error_members(rejection, self.subject)}
        return ErrorAnswer(rejection.kind.status, bytes(wire.encode(body)))

    def stream_error(self, rejection: Rejection) -> bytes:
        """The refusal as an event; no [DONE] follows."""
        return sse.event(self.error(rejection).body)


# --- requests ---------------------------------------------------------------------------------


def _output_limit(body: Mapping[str, Any]) -> int | None:
    """The most tokens one choice may have. Engines disagree on which field wins: the larger."""
    given = [
        limit
        for name in ("max_tokens", "max_completion_tokens")
        if (limit := wire.whole_number(body, name)) is not None
    ]
    return max(given, default=None)


def _choices(body: Mapping[str, Any]) -> int:
    """How many choices one prompt costs; ``best_of`` ones are computed though not returned."""
    given = (wire.whole_number(body, name, least=1) for name in ("n", "best_of"))
    return max(number or 1 for number in given)


def _wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream's client asked for its usage."""
    options = wire.nested(body, "stream_options")
    return wire.flag(options, "include_usage", "stream_options.") is True


# --- answers ----------------------------------------------------------------------------------


def usage_of(value: Any) -> Usage | None:
    """Usage of chat, completions and embeddings; None where it is null or no object."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    return Usage(
        prompt_tokens=tokens(value, "prompt_tokens"),
        completion_tokens=tokens(value, "completion_tokens"),
        cached_tokens=tokens(details, "cached_tokens") if isinstance(details, dict) else None,
    )


class ChoicesFold(Fold):
    """Answers made of choices. ``expected`` of them must finish; ``strip`` unasked-for usage."""

    members = ("choices", "usage")
    markers = (b'"usage"', b'"finish_reason":"', b'"finish_reason": "', b"[DONE]")
    ends_with_done = True
    unread_speaks = True

    def __init__(self, expected: int, *, strip: bool) -> None:
        super().__init__()
        self._expected = expected
        self._strip = strip
        self._usage: Usage | None = None

    def body(self, value: Mapping[str, Any]) -> None:
        """A whole answer holds the same members as an event."""
        self.event(value)

    def event(self, value: Mapping[str, Any]) -> Forward:
        """One chunk; llama.cpp and transformers report usage on one that still has a choice."""
        self.identify(value)
        listed = value.get("choices")
        choices = listed if isinstance(listed, list) else []
        for place, choice in enumerate(choices):
            if isinstance(choice, dict):
                self._finish(choice, place)
                self.spoke = self.spoke or _speaks(choice)
        usage = usage_of(value.get("usage"))
        if usage is None:
            return Forward.KEEP
        # llama.cpp reports on each prompt of a batch in a stream; whole answers tell of the first.
        if self._usage is None or not choices or _index(choices[0], 0) == 0:
            self._usage = usage
        if not self._strip:
            return Forward.KEEP
        return Forward.WITHOUT_USAGE if choices else Forward.DROP

    def _finish(self, choice: Mapping[str, Any], place: int) -> None:
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish[_index(choice, place)] = reason

    def usage(self) -> Usage | None:
        """The last usage that was not null."""
        return self._usage

    @property
    def finished(self) -> bool:
        """All choices gave their reason: transformers never sends [DONE]."""
        return len(self.finish) >= self._expected


def _speaks(choice: Mapping[str, Any]) -> bool:
    """Whether it holds output: text, or any member of a message but its role."""
    message = choice.get("message") or choice.get("delta")
    said = message.items() if isinstance(message, dict) else ()
    return bool(choice.get("text")) or any(value for name, value in said if name != "role")


def _index(choice: Any, place: int) -> int:
    """Which choice it is; by its place where it does not say."""
    index = choice.get("index") if isinstance(choice, dict) else None
    return index if type(index) is int else place


class ChoicesDialect(OpenAiErrors):
    """Endpoints that answer with choices and report a stream's usage only where asked to."""

    name: str

    def prompt(self, body: Mapping[str, Any], /) -> Prompt:
        """The prompt of a request. Raises ``Rejection`` (MALFORMED)."""
        raise NotImplementedError

    def parse(self, path: str, raw: bytes) -> ParsedRequest:
        """See ``gateway.dialects.base.Dialect``."""
        body = wire.decode_object(raw)
        stream = wire.flag(body, "stream") is True
        return ParsedRequest(
            dialect=self.name,
            path=path,
            raw=raw,
            body=body,
            model=wire.required_name(body, "model"),
            stream=stream,
            prompt=self.prompt(body),
            max_output_tokens=_output_limit(body),
            wants_usage=_wants_usage(body) and stream,
            choices=_choices(body),
        )

    def edits(self, request: ParsedRequest, /) -> wire.Edits:
        """Have a stream report its usage, with every other stream option as the client set it."""
        if not request.stream or request.wants_usage:
            return {}
        options = {**wire.nested(request.body, "stream_options"), "include_usage": True}
        return {"stream_options": wire.encode(options)}

    def fold(self, request: ParsedRequest, /) -> Fold:
        """Expects every choice of every prompt; takes out the usage that was forced."""
        return ChoicesFold(
            request.choices * prompts.items(request.prompt),
            strip=request.stream and not request.wants_usage,
        )
