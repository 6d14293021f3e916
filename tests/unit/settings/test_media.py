"""What may be said of media, and what is told of a fault in it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.media import FAMILIES
from gateway.settings import NoSecrets, Settings, SettingsError, parse
from gateway.settings.explain import explain
from gateway.settings.media import NEEDS

QWEN = {"rule": "qwen_vl", "factor": 32, "min_pixels": 65536, "max_pixels": 16777216}


def with_media(media: Any) -> Settings:
    entry = {"name": "a", "url": "http://h", "media": media}
    return parse({"backends": [entry]}, NoSecrets())


@pytest.mark.parametrize(
    "image",
    [
        {"rule": "fixed", "tokens": 256},
        {"rule": "tiles", "tokens": 256, "max_tiles": 12},
        {"rule": "tiles", "tokens": 256, "max_tiles": 12, "thumbnail": False},
        QWEN,
        QWEN | {"min_pixels": 0},
        {"rule": "pixtral", "patch": 16, "longest_edge": 1024},
    ],
)
def test_each_rule_is_what_its_family_takes(image: dict[str, Any]) -> None:
    media = with_media({"image": image}).backends[0].media
    assert media is not None
    assert media.image is not None
    bound = FAMILIES[media.image.rule](**media.image.numbers).bound(None)
    assert bound is not None
    assert bound > 0


def test_the_families_are_those_of_the_bounds() -> None:
    assert NEEDS.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    ("media", "path", "told"),
    [
        ({"image": {"rule": "qwen_vl", "factor": 28}}, "image", "needs min_pixels and max_pixels"),
        ({"image": QWEN | {"patch": 16}}, "image", "does not take patch"),
        ({"image": QWEN | {"thumbnail": True}}, "image", "does not take thumbnail"),
        ({"image": QWEN | {"min_pixels": 2**30}}, "image", "must not be over max_pixels"),
        ({"image": QWEN | {"factor": 0}}, "image.factor", "greater than or equal to 1"),
        ({"image": {"rule": "clip"}}, "image.rule", "'fixed'"),
        ({"image": {}}, "image.rule", "is required"),
        ({"audio": {}}, "audio.max_tokens", "is required"),
        ({"audio": {"max_tokens": 0}}, "audio.max_tokens", "greater than or equal to 1"),
        ({"sound": {"max_tokens": 1}}, "sound", "unknown key"),
        ({"max_parts": 3}, "", "bounds nothing"),
        ({}, "", "bounds nothing"),
    ],
)
def test_faults_are_told_with_their_path(media: dict[str, Any], path: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        with_media(media)
    [problem] = caught.value.problems
    assert problem.path == "backends[0].media" + (f".{path}" if path else "")
    assert told in problem.message


def test_it_is_explained() -> None:
    text = explain(
        with_media(
            {"image": QWEN, "audio": {"max_tokens": 1500}, "max_parts": 8, "remote": "bound"}
        )
    )
    assert (
        "parts that are no text are bounded: images by qwen_vl (factor 32, min_pixels 65536, "
        "max_pixels 16777216), audio at 1500 tokens each, the engine FETCHES remote ones, "
        "8 in one prompt at most"
    ) in text
    kept = with_media({"audio": {"max_tokens": 1500}})
    assert "audio at 1500 tokens each, remote ones are not\n" in explain(kept)
    bare = parse({"backends": [{"name": "a", "url": "http://h"}]}, NoSecrets())
    assert "no text are bounded" not in explain(bare)
