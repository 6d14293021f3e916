"""What the HTTP parser takes and another hop may read otherwise: refused before it is read.

Where a request ends must be beyond doubt, or bytes behind it pass a neighbour as a body and arrive
here as a request of their own. aiohttp's C parser refuses nearly all that RFC 9112 section 6 calls
an error. Its pure-Python one is laxer inside chunks, where nothing after it can look; without the
C parser, chunked bodies are therefore not taken at all.
"""

from __future__ import annotations

from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy

from gateway.errors import Kind, Rejection

CHUNKS_ARE_STRICT: Final = HttpRequestParser is not HttpRequestParserPy


def require_one_reading(
    request: web.BaseRequest, *, chunks_are_strict: bool = CHUNKS_ARE_STRICT
) -> None:
    """Raises ``Rejection`` (BAD_FRAMING) where two hops may differ on this request's end."""
    headers = request.headers
    if request.version not in (HttpVersion11, HttpVersion10):
        raise _bad("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    lengths = headers.getall("Content-Length", ())
    codings = headers.getall("Transfer-Encoding", ())
    if codings:
        if lengths:
            raise _bad("Content-Length and Transfer-Encoding exclude each other.")
        # Letters beyond ASCII may fold to those within: the Kelvin sign to k.
        [coding, *more] = codings
        if more or not coding.isascii() or coding.strip(" \t").lower() != "chunked":
            raise _bad("The only Transfer-Encoding taken here is chunked, once.")
        if request.version == HttpVersion10:
            raise _bad("HTTP/1.0 has no Transfer-Encoding.")
        if not chunks_are_strict:
            raise _bad("Chunked bodies are not taken here; send Content-Length.")
    elif len(lengths) > 1:
        raise _bad("Content-Length must be sent once.")
    if len(headers.getall("Host", ())) > 1:
        raise _bad("Host must be sent once.")


def ends_connection(request: web.BaseRequest) -> bool:
    """Whether what follows may be another protocol's: nothing is read as a request any more."""
    return "Upgrade" in request.headers or request.method == "CONNECT"


def unparsed(error: BaseException | None) -> Rejection:
    """The refusal of what was not served. Quotes nothing of what the parser could not read."""
    if isinstance(error, LineTooLong) or (
        isinstance(error, BadHttpMessage) and "Too many" in error.message
    ):
        return Rejection(
            Kind.HEADERS_TOO_LARGE,
            "The request line or a header is too long, or headers are too many.",
        )
    if isinstance(error, HttpProcessingError):
        return _bad("The request is not well-formed HTTP/1.1.")
    return Rejection(Kind.INTERNAL, "The gateway failed to serve this request.")


def _bad(message: str) -> Rejection:
    return Rejection(Kind.BAD_FRAMING, message)
