"""Requests whose end two HTTP parsers may see in different places (row 41 of docs/cases.md).

Each is a first request that names the model ``first``, followed on the same connection by a whole
second one that names ``second``. What reaches the engine tells how the first was framed: a second
one that arrives after a first that was refused, or twice, has been smuggled.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field

PATH = "/v1/chat/completions"
LINE = f"POST {PATH} HTTP/1.1\r\n".encode()
HOST = b"Host: gateway\r\n"


def chat(model: str) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()


BODY = chat("first")
SIZE = b"%d" % len(BODY)
HEX = b"%x" % len(BODY)
AFTER = chat("second")
SECOND = (
    LINE + HOST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(AFTER) + AFTER
)  # ends the connection, so that all answers can be read to its end


def request(*headers: bytes, body: bytes = BODY, line: bytes = LINE, host: bytes = HOST) -> bytes:
    return line + host + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


def sized(value: bytes, *more: bytes, body: bytes = BODY, **parts: bytes) -> bytes:
    return request(b"Content-Length: " + value, *more, body=body, **parts)


def chunks(
    size: bytes = HEX, data: bytes = BODY, end: bytes = b"\r\n", last: bytes = b"0"
) -> bytes:
    return size + b"\r\n" + data + end + last + b"\r\n\r\n"


def chunked(body: bytes, *more: bytes, coding: bytes = b"chunked", **parts: bytes) -> bytes:
    return request(b"Transfer-Encoding: " + coding, *more, body=body, **parts)


OLD = f"POST {PATH} HTTP/1.0\r\n".encode()
CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: " + SIZE

# Both requests are what they seem.
BOTH = {
    "a length": sized(SIZE),
    "a length with zeros in front": sized(b"00" + SIZE),
    "a length behind a tab": sized(b"\t" + SIZE),
    "a length without a space": request(b"Content-Length:" + SIZE),
    "empty lines in front": b"\r\n\r\n" + sized(SIZE),
    "an underscore is no hyphen": sized(SIZE, b"Content_Length: 1", b"Transfer_Encoding: chunked"),
    "HTTP/1.0, kept alive": sized(SIZE, b"Connection: keep-alive", line=OLD),
    "a length nominated away": sized(SIZE, b"Connection: content-length, keep-alive"),
}
# Likewise where chunks are read by the strict parser.
BOTH_CHUNKED = {
    "chunks": chunked(chunks()),
    "chunks, the coding in capitals": chunked(chunks(), coding=b"CHUNKED"),
    "chunks, the coding behind a tab": chunked(chunks(), coding=b"\tchunked"),
    "a chunk extension": chunked(chunks(HEX + b";a=b")),
    "a chunk size with zeros in front": chunked(chunks(b"0" * 40 + HEX)),
    "a last chunk of three zeros": chunked(chunks(last=b"000")),
    "a trailer": chunked(chunks(last=b"0\r\nX-Trailer: y")),
}
# The first is served, and nothing behind it is a request.
FIRST = {
    "an upgrade": sized(SIZE, b"Connection: upgrade", b"Upgrade: websocket"),
    "an upgrade to h2c": sized(
        SIZE, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA"
    ),
}
# Nothing is served.
NONE = {
    # two framings
    "a length, then chunks": sized(SIZE, CHUNKED),
    "chunks, then a length": chunked(chunks(), b"Content-Length: 5"),
    "a length of nothing, then chunks": sized(b"0", CHUNKED, body=chunks()),
    "two equal lengths": sized(SIZE, LENGTH),
    "two lengths": sized(SIZE, b"Content-Length: 1"),
    "two lengths in one": sized(SIZE + b", " + SIZE),
    # lengths that are none
    "a plus sign": sized(b"+" + SIZE),
    "a minus sign": sized(b"-" + SIZE),
    "a space inside": sized(SIZE[:1] + b" " + SIZE[1:]),
    "an underscore inside": sized(SIZE[:1] + b"_" + SIZE[1:]),
    "hexadecimal": sized(b"0x" + HEX),
    "a fraction": sized(SIZE + b".0"),
    "an empty length": sized(b""),
    "a vertical tab": sized(b"\x0b" + SIZE),
    "a no-break space": sized(SIZE + b"\xa0"),
    "other digits": sized("\u0665".encode()),
    "a NUL": sized(SIZE + b"\0"),
    "a length no integer holds": sized(b"9" * 20),
    # codings that are not exactly chunked
    "an unknown coding": chunked(chunks(), coding=b"xchunked"),
    "chunked not last": chunked(chunks(), coding=b"chunked, identity"),
    "identity before chunked": chunked(chunks(), coding=b"identity, chunked"),
    "gzip before chunked": chunked(chunks(), coding=b"gzip, chunked"),
    "chunked twice": chunked(chunks(), coding=b"chunked, chunked"),
    "two headers": chunked(chunks(), CHUNKED),
    "two headers that differ": chunked(chunks(), CHUNKED, coding=b"identity"),
    "identity": chunked(b"", coding=b"identity"),
    "an empty coding": chunked(b"", coding=b""),
    "a coding behind a vertical tab": chunked(chunks(), coding=b"\x0bchunked"),
    "a quoted coding": chunked(chunks(), coding=b'"chunked"'),
    "a coding with a weight": chunked(chunks(), coding=b"chunked;q=1"),
    "a letter that folds to k": chunked(chunks(), coding="chun\u212aed".encode()),
    "chunks in HTTP/1.0": chunked(chunks(), line=OLD),
    "chunks in HTTP/1.0, kept alive": chunked(chunks(), b"Connection: keep-alive", line=OLD),
    # headers
    "a space before the colon": request(b"Content-Length : " + SIZE),
    "a space before the coding's colon": request(b"Transfer-Encoding : chunked", body=chunks()),
    "a folded coding": request(b"Transfer-Encoding:\r\n chunked", body=chunks()),
    "a folded header": sized(SIZE, b"X: a\r\n b"),
    "a folded first header": sized(SIZE, host=b" Host: gateway\r\n"),
    "bare LF everywhere": sized(SIZE).replace(b"\r\n", b"\n"),
    "bare LF in a header": sized(SIZE, host=b"Host: gateway\n"),
    "bare LF at the end": LINE + HOST + LENGTH + b"\r\n\n" + BODY,
    "bare CR hides a length": request(b"X: a\rContent-Length: " + SIZE),
    "bare CR in a value": sized(SIZE, b"X: a\rb"),
    "a NUL in a name": sized(SIZE, b"X\0: a"),
    "a NUL in a value": sized(SIZE, b"X: a\0b"),
    "a control character": sized(SIZE, b"X: a\x01b"),
    "a name beyond ASCII": sized(SIZE, b"X\xff: a"),
    "no name": sized(SIZE, b": a"),
    "no colon": sized(SIZE, b"Xabc"),
    "two hosts": sized(SIZE, b"Host: other"),
    "no host": sized(SIZE, host=b""),
    "200 headers": sized(SIZE, *(b"X%d: a" % number for number in range(200))),
    "a header of 9 kB": sized(SIZE, b"X: " + b"a" * 9000),
    # chunks
    "LF in a chunk extension": chunked(chunks(HEX + b";a\nb")),
    "CR in a chunk extension": chunked(chunks(HEX + b";a\rb")),
    "a NUL in a chunk extension": chunked(chunks(HEX + b";\0")),
    "chunks ended by LF": chunked(chunks().replace(b"\r\n", b"\n")),
    "a size ended by LF": chunked(HEX + b"\n" + BODY + b"\r\n0\r\n\r\n"),
    "data ended by LF": chunked(chunks(end=b"\n")),
    "the last size ended by LF": chunked(HEX + b"\r\n" + BODY + b"\r\n0\n\r\n"),
    "the last line ended by LF": chunked(HEX + b"\r\n" + BODY + b"\r\n0\r\n\n"),
    "a size with 0x": chunked(chunks(b"0x" + HEX)),
    "a size with a plus sign": chunked(chunks(b"+" + HEX)),
    "a size with a minus sign": chunked(chunks(b"-" + HEX)),
    "a size with an underscore": chunked(chunks(b"0_" + HEX)),
    "a size behind a space": chunked(chunks(b" " + HEX)),
    "a size before a space": chunked(chunks(HEX + b" ")),
    "a size in other digits": chunked(chunks("\u0665".encode())),
    "a size that overflows 64 bits": chunked(chunks(b"1" + HEX.rjust(16, b"0"))),
    "a size that is far too large": chunked(chunks(b"f" * 17)),
    "no size": chunked(chunks(b"")),
    "more data than the size says": chunked(chunks(end=b"X\r\n")),
    "less data than the size says": chunked(chunks(data=BODY[:-1])),
    "a length as a trailer": chunked(chunks(last=b"0\r\nContent-Length: 300")),
    "a trailer without a colon": chunked(chunks(last=b"0\r\nX y")),
    "a trailer ended by LF": chunked(HEX + b"\r\n" + BODY + b"\r\n0\r\nX: y\n\r\n"),
    # request lines
    "an absolute target": sized(SIZE, line=b"POST http://gateway" + LINE[5:]),
    "another version": sized(SIZE, line=LINE.replace(b"1.1", b"1.2")),
    "HTTP/2.0 in a line": sized(SIZE, line=LINE.replace(b"1.1", b"2.0")),
    "a version with a zero in front": sized(SIZE, line=LINE.replace(b"1.1", b"01.1")),
    "no version": sized(SIZE, line=b"POST " + PATH.encode() + b"\r\n"),
    "a space behind the version": sized(SIZE, line=LINE[:-2] + b" \r\n"),
    "tabs for spaces": sized(SIZE, line=LINE.replace(b" ", b"\t")),
    "a method in small letters": sized(SIZE, line=LINE.replace(b"POST", b"post")),
    "a control character in the target": sized(SIZE, line=b"POST /v1\x01" + LINE[8:]),
    "a NUL in the target": sized(SIZE, line=LINE.replace(b"ions ", b"ions\0 ")),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": sized(SIZE, line=LINE.replace(b"POST", b"CONNECT")),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 60,
}
# After a first one without a route, refused by its path alone, the second is an honest request.
SECOND_ONLY = frozenset({"an absolute target"})
# What a lenient reader of heads could take for either, and no two agree on.
MANY_ZEROS = chunked(chunks(b"0" * 9000 + HEX))


@dataclass
class Seen:
    """What came back, and whether the connection ended."""

    statuses: list[int] = field(default_factory=list)
    closed: bool = False
    raw: bytes = b""


async def ask(port: int, *parts: bytes, pause: float = 0.0, patience: float = 8.0) -> Seen:
    """Send ``parts`` as they are on one connection; what is seen until its end or ``patience``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seen = Seen()
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause)
        async with asyncio.timeout(patience):
            while data := await reader.read(65536):
                seen.raw += data
            seen.closed = True
    except TimeoutError:
        pass
    except ConnectionError:
        seen.closed = True
    finally:
        writer.transport.abort()
    seen.statuses = [int(code) for code in re.findall(rb"HTTP/[\d.]+ (\d{3}) ", seen.raw)]
    return seen
