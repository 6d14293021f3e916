"""The five verbs every API dialect has, and what they exchange.

A dialect is pure: bytes in, values out. It knows one wire shape and nothing of engines, limits,
tokenizers or sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.errors import Rejection
from gateway.types import Observation, ParsedRequest


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A refusal in a dialect's shape."""

    status: int
    body: bytes
    content_type: str = "application/json"


class AnswerReader(Protocol):
    """Folds one answer into an ``Observation``; bytes in, bytes to pass on out.

    One reader serves one answer. Its memory is bounded whatever the engine sends.
    """

    def receive(self, chunk: bytes) -> bytes:
        """Take a chunk; return what may go to the client now (forced usage removed).

        Of a stream these are whole events, so that an error event can follow at any time; a JSON
        body is held until ``end``.
        """

    def end(self) -> bytes:
        """The answer's bytes ended cleanly; return what was still held back.

        The cut-off last event of a truncated stream is not returned: no client could read it.
        """

    @property
    def complete(self) -> bool:
        """Whether ``result`` would say COMPLETE by now. Cheap: asked for every chunk."""

    @property
    def new_ids(self) -> tuple[str, ...]:
        """The answer's id where ``receive`` or ``end`` just learnt it, or found it changed.

        Several where it changed several times in these bytes.
        """

    @property
    def failure(self) -> bytes:
        """What told first that the answer failed, as JSON: an event's data or a body; else empty.

        It may hold text of the answer too: only its error objects say what the engine says.
        """

    def result(self) -> Observation:
        """What was seen so far; COMPLETE only after a terminal event or a whole JSON body."""


class Dialect(Protocol):
    """One API dialect."""

    name: str
    operation: str  # OpenTelemetry's gen_ai.operation.name
    paths: Mapping[str, str]  # path -> what the endpoint does, for docs and metrics

    def parse(self, path: str, raw: bytes) -> ParsedRequest:
        """Read a request. Raises ``Rejection`` (MALFORMED) naming the field at fault."""

    def edits(self, request: ParsedRequest, /) -> Mapping[str, msgspec.Raw | None]:
        """Top-level members to set (or, with None, to drop) before forwarding: usage forced on."""

    def marked(self, request: ParsedRequest, text: str, /) -> ParsedRequest | None:
        """The request with ``text`` at the end of its system message.

        None where there is no such place: plain prompts, shapes no engine takes.
        """

    def reader(
        self,
        request: ParsedRequest,
        *,
        status: int,
        content_type: str,
        content_encoding: str = "",
    ) -> AnswerReader:
        """A reader for the answer to this request.

        The answer's own headers decide what kind: a compressed one, or one that is neither JSON
        nor an event stream, passes through with ``scanned`` false.
        """

    def count_answer(self, tokens: int, /) -> bytes:
        """The body that answers a request which only asks for a prompt's length."""

    def error(self, rejection: Rejection) -> ErrorAnswer:
        """The refusal as this dialect's clients expect it."""

    def stream_error(self, rejection: Rejection) -> bytes:
        """The refusal as an event inside an already open stream; never a terminator."""
