"""An inline image's size from its header, without decoding a pixel.

Engines open images with Pillow, which takes headers that say a size twice (a second IHDR, a GIF's
frame beyond its screen) and goes by the last one. A size read here bounds what an image costs, so
a file must not look smaller here than there: whatever is out of the ordinary has no size.
Sources: the formats' specifications, and Pillow 13's PNG, JPEG, GIF and WebP plugins.
"""

from __future__ import annotations

from dataclasses import dataclass

PNG, JPEG, GIF = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", (b"GIF87a", b"GIF89a")
START_OF_SCAN = 0xDA
# Baseline, extended and progressive frames with their arithmetic and hierarchical kin.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Tables, application data, comments and restart intervals: all have a length.
SEGMENTS = frozenset({0xC4, 0xCC, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})
APPLICATION = 0xFF  # a GIF extension's label


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels as stored: EXIF may still turn the image by 90 degrees."""

    width: int
    height: int


def size_of(head: bytes) -> Size | None:
    """The size of the image that begins with ``head``.

    None where it is no PNG, JPEG, GIF or WebP, where ``head`` ends too early, and where a decoder
    could come to another size. An animation has its canvas's size: engines take one frame of it.
    """
    try:
        size = _read(head)
    except IndexError:
        return None
    return size if size is not None and size.width > 0 and size.height > 0 else None


def _read(head: bytes) -> Size | None:
    if head.startswith(PNG):
        return _png(head)
    if head.startswith(JPEG):
        return _jpeg(head)
    if head.startswith(GIF):
        return _gif(head)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _webp(head)
    return None


def _big(head: bytes, at: int, length: int) -> int:
    """An unsigned big-endian number. Raises IndexError past the end."""
    return int.from_bytes(_bytes(head, at, length), "big")


def _little(head: bytes, at: int, length: int) -> int:
    return int.from_bytes(_bytes(head, at, length), "little")


def _bytes(head: bytes, at: int, length: int) -> bytes:
    if at + length > len(head):
        raise IndexError
    return head[at : at + length]


def _png(head: bytes) -> Size | None:
    """IHDR, which must come first and once, up to the first image data."""
    if _bytes(head, 8, 8) != b"\0\0\0\x0dIHDR":
        return None
    at = 33
    while (name := _bytes(head, at + 4, 4)) not in (b"IDAT", b"fdAT"):
        if name == b"IHDR":
            return None
        at += 12 + _big(head, at, 4)
    return Size(_big(head, 16, 4), _big(head, 20, 4))


def _jpeg(head: bytes) -> Size | None:
    """The one frame header before the scan."""
    size: Size | None = None
    at = 2
    while True:
        while _big(head, at, 2) == 0xFFFF:  # fill bytes
            at += 1
        marker = head[at + 1]
        if head[at] != 0xFF or (marker in FRAMES and size is not None):
            return None
        if marker == START_OF_SCAN:
            return size
        if marker in FRAMES:
            size = Size(_big(head, at + 7, 2), _big(head, at + 5, 2))
        elif marker not in SEGMENTS:
            return None
        length = _big(head, at + 2, 2)
        if length < 2:
            return None
        at += 2 + length


def _gif(head: bytes) -> Size | None:
    """The screen, and the first frame where it reaches beyond."""
    flags = head[10]
    at = 13 + _palette(flags)
    while head[at] == ord("!"):
        label, at = head[at + 1], at + 2
        blocks = 0
        while length := head[at]:
            at += 1 + length
            blocks += 1
        # Pillow reads on past the end of an extension that is shorter than it expects.
        if blocks < (2 if label == APPLICATION else 1):
            return None
        at += 1
    if head[at] != ord(","):
        return None
    right = _little(head, at + 1, 2) + _little(head, at + 5, 2)
    below = _little(head, at + 3, 2) + _little(head, at + 7, 2)
    return Size(max(_little(head, 6, 2), right), max(_little(head, 8, 2), below))


def _palette(flags: int) -> int:
    """Bytes of a colour table that a GIF's flags announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp(head: bytes) -> Size | None:
    """The canvas of an extended file, else the only frame's size."""
    kind = _bytes(head, 12, 4)
    if kind == b"VP8X":
        return Size(_little(head, 24, 3) + 1, _little(head, 27, 3) + 1)
    if kind == b"VP8L" and head[20] == 0x2F:
        bits = _little(head, 21, 4)
        return Size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and _bytes(head, 23, 3) == b"\x9d\x01\x2a":
        return Size(_little(head, 26, 2) & 0x3FFF, _little(head, 28, 2) & 0x3FFF)
    return None
