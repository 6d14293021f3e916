"""What images cost a simulated engine: Qwen2-VL's arithmetic, on its own feet.

The gateway's bounds (``gateway.core.media``) are deliberately not used, as its counting is not.
Rule: the resizing of ``image_processing_qwen2_vl.py`` in transformers 5.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"


@dataclass(frozen=True, slots=True)
class Vision:
    """Pixels an image is scaled to, on a grid of ``cell`` pixels, a token a cell.

    ``remote`` is the size of whatever is behind a URL: nothing is fetched.
    """

    cell: int = 28
    fewest: int = 56 * 56
    most: int = 1280 * 28 * 28
    remote: tuple[int, int] = (1920, 1080)

    def tokens(self, messages: Iterable[Mapping[str, Any]]) -> int:
        """Tokens of all images. Raises ValueError for what is no PNG, or too long a strip."""
        contents = (message.get("content") for message in messages)
        parts = [part for content in contents if isinstance(content, list) for part in content]
        return sum(self._cells(*self._size(part)) for part in parts if _is_image(part))

    def _cells(self, width: int, height: int) -> int:
        if max(width, height) > 200 * min(width, height):
            raise ValueError("absolute aspect ratio must be smaller than 200")
        across, down = round(width / self.cell), round(height / self.cell)
        pixels = across * down * self.cell**2
        if self.fewest <= pixels <= self.most:
            return across * down
        too_many = pixels > self.most
        scale = math.sqrt((self.most if too_many else self.fewest) / (width * height)) / self.cell
        if too_many:
            return max(1, math.floor(width * scale)) * max(1, math.floor(height * scale))
        return math.ceil(width * scale) * math.ceil(height * scale)

    def _size(self, part: Mapping[str, Any]) -> tuple[int, int]:
        given = part.get("image_url")
        url = str(given.get("url") if isinstance(given, dict) else given)
        if not url.startswith("data:"):
            return self.remote
        try:
            head = base64.b64decode(url.partition(",")[2])
        except binascii.Error:
            head = b""
        if not head.startswith(PNG_START) or len(head) < 24:
            raise ValueError("Failed to load image: cannot identify image file")
        width, height = struct.unpack(">II", head[16:24])
        return width, height


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("image_url", "input_image")
