"""How many tokens an image, a sound, a video or a file can become at most.

Each rule follows one family of processors and is told the model's numbers by the operator, who
reads them off its ``preprocessor_config.json``. A bound holds for both orientations, since EXIF
may turn an image, and where the size is not known it is the family's maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from gateway.core.image_header import Size, size_of

# What comes around a part and is not its own tokens: start and end marks, "Picture 12: ", line
# breaks, a BOS where the processor tokenises again, a merge that text loses at either side of it.
# The longest placeholder of vLLM 0.32.0's models is 26 tokens with its line breaks, even for a
# tokenizer that takes each of its marks for plain text; one that knows them has 7.
AROUND = 32
MAX_RATIO = 200  # of an image's sides: Qwen's processors refuse more


class Kind(StrEnum):
    """What a part is."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One part of a prompt that is no text.

    ``head`` are its first bytes where it is an inline image; ``elsewhere``: the engine would have
    to fetch it.
    """

    kind: Kind
    head: bytes = b""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many tokens an image, or whatever else, of any size.

    Gemma 3 without pan and scan: ``image_seq_length``, 256. LLaVA 1.5: (336 / 14)^2 = 576.
    """

    tokens: int

    def bound(self, size: Size | None) -> int | None:  # noqa: ARG002
        """Tokens at most."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Tiles:
    """An image cut into at most ``max_tiles`` tiles of ``tokens`` each, and a view of the whole.

    InternVL: ``image_seq_length`` x (``max_patches`` + 1), the view only where there are several
    (transformers, ``crop_image_to_patches``). Which grid is chosen depends on the size; the bound
    does not.
    """

    tokens: int
    max_tiles: int
    thumbnail: bool = True

    def bound(self, size: Size | None) -> int | None:  # noqa: ARG002
        """Tokens at most."""
        views = self.thumbnail and self.max_tiles > 1
        return self.tokens * (self.max_tiles + views)


@dataclass(frozen=True, slots=True)
class QwenVl:
    """Sides rounded to multiples of ``factor``, their product kept between two numbers of pixels.

    ``factor`` is ``patch_size`` x ``merge_size``: 28 for Qwen2-VL and Qwen2.5-VL, 32 for Qwen3-VL.
    Tokens are height x width / factor^2 after transformers' ``smart_resize``; qwen-vl-utils and
    SGLang differ in that a side never rounds to nothing, and the larger of both holds.
    """

    factor: int
    min_pixels: int
    max_pixels: int

    def bound(self, size: Size | None) -> int | None:
        """Tokens at most; None for sides so unequal that there is no telling."""
        if size is None:
            return self._most()
        short, long = sorted((size.width, size.height))
        if long > MAX_RATIO * short:
            return None
        return max(self._tokens(short, long, least) for least in (0, 1))

    def _tokens(self, height: int, width: int, least: int) -> int:
        """After the resizing, which is the same for both orientations."""
        factor = self.factor
        rows, columns = (max(least, round(side / factor)) for side in (height, width))
        pixels = rows * columns * factor**2
        if pixels > self.max_pixels:
            beta = math.sqrt(height * width / self.max_pixels)
            rows, columns = (max(1, math.floor(side / beta / factor)) for side in (height, width))
        elif pixels < self.min_pixels:
            beta = math.sqrt(self.min_pixels / (height * width))
            rows, columns = (math.ceil(side * beta / factor) for side in (height, width))
        return rows * columns

    def _most(self) -> int:
        """Over all sizes up to ``MAX_RATIO``.

        Within the pixels: max_pixels / factor^2. Shrunk with the short side held at one factor:
        the long one is at most sqrt(MAX_RATIO x max_pixels). Grown from too few pixels: both sides
        round up, (a + 1)(b + 1) with ab = min_pixels / factor^2 and b <= MAX_RATIO x a.
        """
        area = self.factor**2
        low = self.min_pixels / area
        spread = math.sqrt(MAX_RATIO)
        shrunk = math.sqrt(MAX_RATIO * self.max_pixels) / self.factor
        grown = low + math.sqrt(low) * (spread + 1 / spread) + 1
        return math.ceil(max(self.max_pixels / area, shrunk, grown))


@dataclass(frozen=True, slots=True)
class Pixtral:
    """Rows of patches, each row ending in a break token, the longest edge kept below a number.

    ``patch`` is ``patch_size`` x ``spatial_merge_size``: 16 for Pixtral, 28 for Mistral Small 3.1.
    Tokens are rows x (columns + 1): the last break is the end (transformers, ``PixtralProcessor``).
    The scaled side is rounded down there and to the nearest in mistral-common, so up here.
    """

    patch: int
    longest_edge: int

    def bound(self, size: Size | None) -> int | None:
        """Tokens at most."""
        edge = self.longest_edge
        short, long = (edge, edge) if size is None else sorted((size.width, size.height))
        if long > edge:
            short, long = _ceil(short * edge, long), edge
        return _ceil(long, self.patch) * (_ceil(short, self.patch) + 1)


ImageRule = Fixed | Tiles | QwenVl | Pixtral
# By the names that the configuration has for them.
FAMILIES: Mapping[str, Callable[..., ImageRule]] = MappingProxyType(
    {"fixed": Fixed, "tiles": Tiles, "qwen_vl": QwenVl, "pixtral": Pixtral}
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator says of one backend's models. A kind without a rule has no bound."""

    by_kind: Mapping[Kind, ImageRule] = field(default_factory=lambda: MappingProxyType({}))
    max_parts: int | None = None
    fetching: bool = True  # parts that are elsewhere have the bound of their kind too


def bound(parts: Sequence[MediaPart], rules: Rules) -> int | None:
    """Tokens that all parts and what is around them come to at most; None where none is proved."""
    if rules.max_parts is not None and len(parts) > rules.max_parts:
        return None
    total = 0
    for part in parts:
        rule = rules.by_kind.get(part.kind)
        tokens = rule.bound(size_of(part.head)) if rule is not None else None
        if tokens is None or (part.elsewhere and not rules.fetching):
            return None
        total += tokens + AROUND
    return total


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
