"""What a client may be told. Every refusal on the data plane is one of these, and only these.

A ``Rejection`` carries the numbers; the dialect gives it its shape (``gateway.dialects``). Any
other exception that reaches the rescue is a bug and becomes a bare 500 without its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Self


class Kind(Enum):
    """A class of refusal: HTTP status and the machine-readable code in the body."""

    MALFORMED = (400, "invalid_request")
    BAD_FRAMING = (400, "malformed_http")
    SLOW_BODY = (400, "request_body_timeout")
    PROMPT_TOO_LONG = (400, "context_length_exceeded")
    NOT_COUNTABLE = (400, "prompt_not_countable")
    EXCEEDS_ALLOWANCE = (400, "request_exceeds_allowance")
    UNAUTHORIZED = (401, "invalid_api_key")
    MODEL_NOT_ALLOWED = (403, "model_not_allowed")
    NOT_FOUND = (404, "not_found")
    MODEL_NOT_FOUND = (404, "model_not_found")
    BODY_TOO_LARGE = (413, "request_too_large")
    UNSUPPORTED_ENCODING = (415, "unsupported_content_encoding")
    HEADERS_TOO_LARGE = (431, "headers_too_large")
    RATE_LIMITED = (429, "rate_limit_exceeded")
    BACKEND_BUSY = (429, "backend_busy")
    INTERNAL = (500, "internal_error")
    UPSTREAM_BROKE = (502, "upstream_error")
    WITHHELD = (502, "response_withheld")
    TOO_MANY_CONNECTIONS = (503, "too_many_connections")
    LIMIT_UNKNOWN = (503, "limit_unknown")
    COUNT_UNAVAILABLE = (503, "count_unavailable")
    ENGINE_UNSAFE = (503, "engine_unsafe")
    QUARANTINED = (503, "backend_quarantined")
    EJECTED = (503, "backend_ejected")
    UPSTREAM_UNAVAILABLE = (503, "upstream_unavailable")
    STORE_UNAVAILABLE = (503, "limiter_store_unavailable")
    UPSTREAM_TIMEOUT = (504, "upstream_timeout")

    def __init__(self, status: int, code: str) -> None:
        self.status = status
        self.code = code


@dataclass(frozen=True)
class PromptTooLong:
    """The numbers of an over-long prompt. ``at_least`` says counting stopped at ``tokens``."""

    tokens: int
    limit: int
    limited_by: str  # "engine" or "tenant policy"
    at_least: bool = False


class Rejection(Exception):
    """A refusal with everything its answer needs. Frozen by convention: set once, never edited.

    ``message`` is for the client and must not hold prompt text, keys or internals. ``param`` names
    the offending field where there is one. ``retry_after`` is whole seconds.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        too_long: PromptTooLong | None = None,
        incident: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.too_long = too_long
        self.incident = incident

    def kept(self) -> Self:
        """Itself without traceback, cause and context, for who keeps it after handling it.

        They hold the frames it passed, and those hold who keeps it: a cycle with the request's
        body in it, which would stay until the garbage collector comes.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self
