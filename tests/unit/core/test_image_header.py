"""Sizes from headers: right for ordinary files, and none where a decoder could see another."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.image_header import Size, size_of

IMAGES = sorted((Path(__file__).parents[2] / "data/images").iterdir())  # written by Pillow 13


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.name)
def test_a_file_has_the_size_in_its_name(file: Path) -> None:
    width, height = map(int, re.findall(r"\d+", file.stem))
    assert size_of(file.read_bytes()) == Size(width, height)


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.name)
def test_a_head_that_ends_early_has_that_size_or_none(file: Path) -> None:
    whole = file.read_bytes()
    assert {size_of(whole[:end]) for end in range(len(whole))} == {None, size_of(whole)}


@given(st.binary(max_size=80), st.sampled_from([b"", *(file.read_bytes() for file in IMAGES)]))
def test_nothing_raises(noise: bytes, start: bytes) -> None:
    for keep in (0, 3, 8, 13, 20, 40):
        size = size_of(start[:keep] + noise)
        assert size is None or (size.width > 0 and size.height > 0)


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    parts = [struct.pack(">I", len(body)) + name + body + b"crc " for name, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def ihdr(width: int, height: int) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">II", width, height) + bytes(5)


def frame(width: int, height: int, marker: int = 0xC0) -> bytes:
    return bytes([0xFF, marker, 0, 11, 8]) + struct.pack(">HH", height, width) + bytes(4)


def gif(
    screen: tuple[int, int], first: tuple[int, int, int, int], extensions: bytes = b""
) -> bytes:
    head = b"GIF89a" + struct.pack("<HH", *screen) + bytes(3)
    return head + extensions + b"," + struct.pack("<HHHH", *first) + bytes(2)


SCAN = b"\xff\xda\0\x08" + bytes(6)
COMMENT = b"!\xfe\x03abc\0"
LOOP = b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0"


def test_ordinary_headers_are_read() -> None:
    assert size_of(png(ihdr(5, 7), (b"tEXt", b"IDAT"), (b"IDAT", b""))) == Size(5, 7)
    assert size_of(b"\xff\xd8\xff\xe0\0\x04ab\xff" + frame(5, 7) + SCAN) == Size(5, 7)
    assert size_of(gif((5, 7), (0, 0, 5, 7), COMMENT + LOOP)) == Size(5, 7)


def test_a_gifs_first_frame_may_reach_beyond_its_screen() -> None:
    assert size_of(gif((5, 7), (3, 0, 900, 2))) == Size(903, 7)


@pytest.mark.parametrize(
    "head",
    [
        png(ihdr(1, 1), ihdr(9999, 9999), (b"IDAT", b"")),
        png((b"tEXt", b""), ihdr(1, 1), (b"IDAT", b"")),
        png(ihdr(1, 1)),
        png(ihdr(0, 1), (b"IDAT", b"")),
        b"\xff\xd8" + frame(1, 1) + frame(9999, 9999) + SCAN,
        b"\xff\xd8" + SCAN + frame(1, 1),
        b"\xff\xd8" + frame(1, 1),
        b"\xff\xd8" + frame(1, 1) + b"junk" + frame(9999, 9999) + SCAN,
        b"\xff\xd8\xff\xe0\0\0" + frame(1, 1) + SCAN,
        b"\xff\xd8\xff\xd0" + frame(1, 1) + SCAN,
        gif((1, 1), (0, 0, 1, 1), b"!\xfe\0"),
        gif((1, 1), (0, 0, 1, 1), b"!\xff\x0bNETSCAPE2.0\0"),
        gif((1, 1), (0, 0, 1, 1), b"\0"),
        b"RIFF\0\0\0\0WEBPANMF" + bytes(30),
        b"RIFF\0\0\0\0WEBPVP8 " + bytes(30),
        b"<svg width='1' height='1'/>",
        b"BM" + bytes(60),
        b"",
    ],
)
def test_what_is_out_of_the_ordinary_has_no_size(head: bytes) -> None:
    assert size_of(head) is None
