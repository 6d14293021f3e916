"""What is refused of parsed heads, whatever parser let it through."""

from __future__ import annotations

import pytest
from aiohttp import HttpVersion, HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import BadHttpMessage, BadStatusLine, LineTooLong
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from gateway.edge import framing
from gateway.errors import Kind, Rejection

HOST = ("Host", "x")
SIZED = ("Content-Length", "5")
CHUNKED = ("Transfer-Encoding", "chunked")


def head(*headers, version=HttpVersion11, method="POST"):
    return make_mocked_request(method, "/", CIMultiDict(headers), version=version)


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ([HOST, SIZED], HttpVersion11),
        ([HOST, CHUNKED], HttpVersion11),
        ([HOST, ("Transfer-Encoding", " Chunked\t")], HttpVersion11),
        ([HOST, SIZED], HttpVersion10),
        ([HOST], HttpVersion11),
    ],
)
def test_one_framing_passes(headers, version):
    framing.require_one_reading(head(*headers, version=version), chunks_are_strict=True)


@pytest.mark.parametrize(
    ("headers", "version", "strict"),
    [
        ([HOST, SIZED, CHUNKED], HttpVersion11, True),
        ([HOST, SIZED, SIZED], HttpVersion11, True),
        ([HOST, CHUNKED, CHUNKED], HttpVersion11, True),
        ([HOST, ("Transfer-Encoding", "chunked, chunked")], HttpVersion11, True),
        ([HOST, ("Transfer-Encoding", "gzip, chunked")], HttpVersion11, True),
        ([HOST, ("Transfer-Encoding", "\x0bchunked")], HttpVersion11, True),
        ([HOST, ("Transfer-Encoding", "chun\u212aed")], HttpVersion11, True),
        ([HOST, ("Transfer-Encoding", "identity")], HttpVersion11, True),
        ([HOST, ("Transfer-Encoding", "")], HttpVersion11, True),
        ([HOST, CHUNKED], HttpVersion10, True),
        ([HOST, CHUNKED], HttpVersion11, False),
        ([HOST, HOST, SIZED], HttpVersion11, True),
        ([HOST, SIZED], HttpVersion(2, 0), True),
        ([HOST, SIZED], HttpVersion(1, 2), True),
        ([HOST, SIZED], HttpVersion(0, 9), True),
    ],
)
def test_two_readings_do_not(headers, version, strict):
    with pytest.raises(Rejection) as refusal:
        framing.require_one_reading(head(*headers, version=version), chunks_are_strict=strict)
    assert refusal.value.kind is Kind.BAD_FRAMING


def test_what_may_become_another_protocol_ends_its_connection():
    assert framing.ends_connection(head(HOST, ("Upgrade", "h2c")))
    assert framing.ends_connection(head(HOST, method="CONNECT"))
    assert not framing.ends_connection(head(HOST, ("Connection", "upgrade")))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LineTooLong(b"SECRET", 8190), Kind.HEADERS_TOO_LARGE),
        (BadHttpMessage("Too many headers received"), Kind.HEADERS_TOO_LARGE),
        (BadHttpMessage("SECRET"), Kind.BAD_FRAMING),
        (BadStatusLine("SECRET"), Kind.BAD_FRAMING),
        (ValueError("SECRET"), Kind.INTERNAL),
        (None, Kind.INTERNAL),
    ],
)
def test_what_the_parser_refused_is_not_repeated(error, kind):
    refusal = framing.unparsed(error)
    assert refusal.kind is kind
    assert "SECRET" not in refusal.message
