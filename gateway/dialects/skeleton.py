"""What every dialect does the same way: most need no edits, and all pick their reader alike."""

from __future__ import annotations

from gateway.dialects import answers, wire
from gateway.dialects.base import AnswerReader
from gateway.types import ParsedRequest


class BaseDialect:
    """A dialect whose answers are told by a fold."""

    def fold(self, request: ParsedRequest, /) -> answers.Fold:
        """A fresh fold for the answer to this request."""
        raise NotImplementedError

    def edits(self, _request: ParsedRequest, /) -> wire.Edits:
        """None: usage comes unasked."""
        return {}

    def marked(self, _request: ParsedRequest, _text: str, /) -> ParsedRequest | None:
        """None: a plain prompt has no system message."""
        return None

    def count_answer(self, tokens: int, /) -> bytes:
        """The shape of Anthropic's counting endpoint, the only one there is so far."""
        return bytes(wire.encode({"input_tokens": tokens}))

    def reader(
        self,
        request: ParsedRequest,
        *,
        status: int,
        content_type: str,
        content_encoding: str = "",
    ) -> AnswerReader:
        """See ``gateway.dialects.base.Dialect``."""
        return answers.reader_for(
            self.fold(request),
            status=status,
            content_type=content_type,
            content_encoding=content_encoding,
        )
