"""Reading a request's body within its bounds: bytes, seconds, encodings."""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.errors import Kind, Rejection


async def read_body(request: web.BaseRequest, max_bytes: int, deadline: float) -> bytes:
    """The whole body as sent.

    Raises ``Rejection``: BODY_TOO_LARGE over ``max_bytes``, MALFORMED where it does not arrive
    within ``deadline`` seconds, UNSUPPORTED_ENCODING where it is compressed: what is counted must
    be what is sent, and a bound on wire bytes would bound nothing.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Rejection(
            Kind.UNSUPPORTED_ENCODING,
            "Compressed request bodies are not accepted; send plain JSON.",
        )
    declared = request.content_length
    if declared is not None and declared > max_bytes:
        raise _too_large(max_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    if request.content.is_eof():  # a small body came with its head: nothing to wait for
        body = request.content.read_nowait(-1)
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(deadline):
            while part := await request.content.readany():
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except TimeoutError as error:
        raise Rejection(
            Kind.MALFORMED, f"The request body did not arrive within {deadline:g}s."
        ) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(max_bytes: int) -> Rejection:
    return Rejection(Kind.BODY_TOO_LARGE, f"The request body is larger than {max_bytes} bytes.")
