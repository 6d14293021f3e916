"""Recognising an engine's own refusal of an over-long prompt, and the limit it names.

Only error objects are looked at, never text a model wrote, and a wording must open the message:
both keep a tenant from talking the gateway into a limit through a reply or an echoed field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.engines.base import Answer, StatedLimit
from gateway.engines.reading import below, digits, items_at, text_at

_HINTS = (b'"error"', b'"abort"')  # without one of these there is nothing to decode


@dataclass(frozen=True, slots=True)
class Wording:
    """How an engine words the refusal.

    ``opening`` matches the start of the message; its group ``limit``, where it has one, is the
    number stated. ``refused_at_limit``: a prompt of exactly that many tokens is refused too, so
    the longest prompt is one less. A group ``given`` is the prompt's length where the wording
    also serves prompts that fit and only ask for too long an answer; those are not matched.
    """

    opening: re.Pattern[str]
    refused_at_limit: bool = True


# llama-server's, which also runs underneath Ollama.
EXCEEDS_CONTEXT = Wording(
    re.compile(
        r"(the )?request (\(\d+ tokens\) )?exceeds the available context size"
        r"( \((?P<limit>\d+) tokens\))?"
    )
)


def stated_in(status: int, body: bytes, wordings: Sequence[Wording]) -> StatedLimit | None:
    """The first refusal in an answer that has one of the wordings."""
    for error in errors_in(status, body):
        message = text_at(error, "message") or ""
        for wording in wordings:
            if (found := wording.opening.match(message)) and not _fits(found):
                limit = digits(found.groupdict().get("limit"))
                return StatedLimit(below(limit, 1) if wording.refused_at_limit else limit)
    return None


def _fits(found: re.Match[str]) -> bool:
    numbers = found.groupdict()
    limit, given = digits(numbers.get("limit")), digits(numbers.get("given"))
    return limit is not None and given is not None and given < limit


def errors_in(status: int, body: bytes) -> tuple[Mapping[str, Any], ...]:
    """The error objects of an answer, whole or streamed, in any of the engines' shapes.

    They come with a status from 400 on, and with 200 where the stream was already open.

    Flat ``{"object":"error",...}`` or ``{"type":"error",...}``, nested ``{"error":{...}}`` or
    ``{"error":"text"}`` (given here as its message), a Responses event's ``response.error`` and
    SGLang's native ``meta_info.finish_reason`` of type abort.
    """
    can_refuse = status == 200 or 400 <= status < 600
    if not can_refuse or not any(hint in body for hint in _HINTS):
        return ()
    return tuple(error for document in _documents(body) for error in _errors_of(document))


def _documents(body: bytes) -> Iterator[Any]:
    """The JSON documents of a whole body, of a list, or of server-sent events."""
    whole = _decode(body)
    if whole is not None:
        yield whole
        yield from items_at(whole)
        return
    for line in body.splitlines():
        if line.startswith(b"data:"):
            yield _decode(line[5:])


def _decode(data: bytes) -> Any:
    return Answer(200, data).json()


def _errors_of(document: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(document, Mapping):
        return
    if "error" in (document.get("object"), document.get("type")):
        yield document
    error = document.get("error")
    if isinstance(error, str):
        yield {"message": error}
    elif isinstance(error, Mapping):
        yield error
    for holder, member in (("response", "error"), ("meta_info", "finish_reason")):
        nested = document.get(holder)
        inner = nested.get(member) if isinstance(nested, Mapping) else None
        if isinstance(inner, Mapping) and (member == "error" or inner.get("type") == "abort"):
            yield inner
