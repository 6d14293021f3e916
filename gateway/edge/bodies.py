"""Reading a request's body within its bounds: bytes, seconds, encodings."""

from __future__ import annotations

import asyncio
import re

from aiohttp import StreamReader, web

from gateway.errors import Kind, Rejection

# Plain, quoted, or in the extended form, whose value can be no utf-8 by name alone.
_CHARSET = re.compile(r'charset\s*(?:\*\s*)?=\s*"?([^";,]*)')


async def read_body(request: web.BaseRequest, max_bytes: int, deadline: float) -> bytes:
    """The whole body as sent.

    Raises ``Rejection``: BODY_TOO_LARGE over ``max_bytes``, SLOW_BODY where it does not arrive
    within ``deadline`` seconds, BAD_FRAMING where its chunks are none, UNSUPPORTED_ENCODING where
    it is compressed or not in UTF-8: what is counted must be what is sent, and a bound on wire
    bytes would bound nothing.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Rejection(
            Kind.UNSUPPORTED_ENCODING,
            "Compressed request bodies are not accepted; send plain JSON.",
        )
    require_utf_8(request.headers.get("Content-Type", ""))
    declared = request.content_length
    if declared is not None and declared > max_bytes:
        raise _too_large(max_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    try:
        if request.content.is_eof():  # a small body came with its head: nothing to wait for
            return _within(request.content.read_nowait(-1), max_bytes)
        async with asyncio.timeout(deadline):
            return await _gathered(request.content, max_bytes, chunked=declared is None)
    except TimeoutError as error:
        raise Rejection(
            Kind.SLOW_BODY, f"The request body did not arrive within {deadline:g}s."
        ) from error
    except web.RequestPayloadError as error:
        raise Rejection(Kind.BAD_FRAMING, "The request body is not well-formed.") from error


def require_utf_8(content_type: str) -> None:
    """Raises ``Rejection`` where an engine might decode the body by another ``charset``."""
    if "charset" not in (lower := content_type.lower()):
        return
    if any(charset.strip() not in ("utf-8", "utf8") for charset in _CHARSET.findall(lower)):
        raise Rejection(Kind.UNSUPPORTED_ENCODING, "Request bodies must be JSON in UTF-8.")


async def _gathered(content: StreamReader, max_bytes: int, *, chunked: bool) -> bytes:
    """All parts, joined once.

    ``readany`` joins what has come so far, which is one more copy of a large body; ``readchunk``
    does not, but would give each of a chunked body's chunks alone, however small they are.
    """
    parts: list[bytes] = []
    size = 0
    while part := await content.readany() if chunked else (await content.readchunk())[0]:
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def _within(body: bytes, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> Rejection:
    return Rejection(Kind.BODY_TOO_LARGE, f"The request body is larger than {max_bytes} bytes.")
