"""How many tokens the parts of a prompt that are no text can become (``gateway.core.media``)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, model_validator

from gateway.settings.fields import Bool, Positive, Whole
from gateway.settings.section import Section

# The keys of each rule: those it needs, and those it may have.
NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fixed": ("tokens",),
        "tiles": ("tokens", "max_tiles"),
        "qwen_vl": ("factor", "min_pixels", "max_pixels"),
        "pixtral": ("patch", "longest_edge"),
    }
)
MAY_HAVE: Mapping[str, tuple[str, ...]] = MappingProxyType({"tiles": ("thumbnail",)})


class ImageRule(Section):
    """How one family of models turns an image into tokens."""

    rule: Literal["fixed", "tiles", "qwen_vl", "pixtral"] = Field(
        description="The family: so many tokens an image, tiles of so many, Qwen-VL's pixels, or "
        "Pixtral's rows."
    )
    tokens: Positive | None = Field(
        default=None, description="`fixed`: tokens an image. `tiles`: tokens a tile."
    )
    max_tiles: Positive | None = Field(
        default=None, description="`tiles`: most tiles of one image, without the view of the whole."
    )
    thumbnail: Bool = Field(
        default=True, description="`tiles`: a view of the whole is added where there are several."
    )
    factor: Positive | None = Field(
        default=None,
        description="`qwen_vl`: `patch_size` x `merge_size`. 28 for Qwen2.5-VL, 32 for Qwen3-VL.",
    )
    min_pixels: Whole | None = Field(
        default=None, description="`qwen_vl`: `min_pixels`, or `size.shortest_edge`."
    )
    max_pixels: Positive | None = Field(
        default=None, description="`qwen_vl`: `max_pixels`, or `size.longest_edge`."
    )
    patch: Positive | None = Field(
        default=None, description="`pixtral`: `patch_size` x `spatial_merge_size`."
    )
    longest_edge: Positive | None = Field(
        default=None, description="`pixtral`: `size.longest_edge`, in pixels."
    )

    @model_validator(mode="after")
    def _what_the_rule_takes(self) -> Self:
        missing = [name for name in NEEDS[self.rule] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"rule {self.rule} needs {' and '.join(missing)}")
        foreign = self.model_fields_set - {"rule", *_taken_by(self.rule)}
        if foreign:
            raise ValueError(f"rule {self.rule} does not take {' or '.join(sorted(foreign))}")
        if self.rule == "qwen_vl" and (self.min_pixels or 0) > (self.max_pixels or 0):
            raise ValueError("min_pixels must not be over max_pixels")
        return self

    @property
    def numbers(self) -> dict[str, int]:
        """What the rule takes, by name."""
        return {name: getattr(self, name) for name in _taken_by(self.rule)}


def _taken_by(rule: str) -> tuple[str, ...]:
    return (*NEEDS[rule], *MAY_HAVE.get(rule, ()))


class PartBound(Section):
    """The most that one part becomes."""

    max_tokens: Positive = Field(description="Tokens that one becomes at most, whatever it holds.")


class Media(Section):
    """What parts of each kind cost at most. A prompt with a part of another kind has no bound."""

    image: ImageRule | None = Field(default=None, description="Images.")
    audio: PartBound | None = Field(default=None, description="Sounds.")
    video: PartBound | None = Field(default=None, description="Videos.")
    file: PartBound | None = Field(default=None, description="Files and documents.")
    remote: Literal["bound", "refuse"] = Field(
        default="refuse",
        description="Parts given by a URL, and files, which the engine would fetch: bound them "
        "like others of unknown size, or give them no bound.",
    )
    max_parts: Positive | None = Field(
        default=None, description="Most parts of one prompt; with more it has no bound."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.image or self.audio or self.video or self.file):
            raise ValueError("needs image, audio, video or file, or it bounds nothing")
        return self
