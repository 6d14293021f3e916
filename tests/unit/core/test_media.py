"""Bounds by size, against the processors' own functions in the installed transformers."""

from __future__ import annotations

import ast
import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.image_header import Size
from gateway.core.media import (
    AROUND,
    FAMILIES,
    MAX_RATIO,
    Fixed,
    Kind,
    MediaPart,
    Pixtral,
    QwenVl,
    Rules,
    Tiles,
    bound,
)

SIDES = st.one_of(st.integers(1, 300), st.integers(1, 20_000))
PIXELS = st.tuples(st.integers(0, 2**24), st.integers(1, 2**24)).map(sorted)
FACTORS = st.sampled_from([14, 28, 32])


def processors_own(module: str, *names: str) -> dict[str, Any]:
    """Functions of a transformers module, without the imports (torch, Pillow) of the module."""
    found = importlib.util.find_spec("transformers")
    assert found is not None
    assert found.origin is not None
    file = Path(found.origin).parent / "models" / f"{module}.py"
    if not file.exists():
        pytest.skip(f"this transformers has no {module}")
    tree = ast.parse(file.read_text("utf-8"))
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    for function in functions:
        function.decorator_list = []
        for argument in function.args.args:
            argument.annotation = None
        function.returns = None
    namespace: dict[str, Any] = {"math": math, "get_image_size": lambda size, _format: size}
    code = ast.Module(functions, type_ignores=[])
    exec(compile(ast.fix_missing_locations(code), str(file), "exec"), namespace)
    if not all(name in namespace for name in names):
        pytest.skip(f"{module} has other functions in this transformers")
    return namespace


# --- Qwen-VL ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smart_resize() -> Any:
    return processors_own("qwen2_vl/image_processing_pil_qwen2_vl", "smart_resize")["smart_resize"]


@given(SIDES, SIDES, FACTORS, PIXELS)
@example(1, 1, 28, [56 * 56, 28 * 28 * 1280])
@example(1, 200, 28, [56 * 56, 28 * 28 * 1280])
@example(20_000, 100, 32, [65_536, 2**24])
@example(14, 2800, 28, [0, 1])
@example(3, 600, 28, [2**20, 2**20])
def test_qwen_is_never_below_smart_resize(
    smart_resize: Any, width: int, height: int, factor: int, pixels: list[int]
) -> None:
    low, high = pixels
    rule = QwenVl(factor, low, high)
    ours = rule.bound(Size(width, height))
    if max(width, height) > MAX_RATIO * min(width, height):
        assert ours is None
        return
    both = [
        smart_resize(h, w, factor, min_pixels=low, max_pixels=high)
        for h, w in ((height, width), (width, height))
    ]
    theirs = max(h * w // factor**2 for h, w in both)
    most = rule.bound(None)
    assert ours is not None
    assert most is not None
    assert theirs <= ours <= most
    if min(width, height) >= factor:  # where no side rounds to nothing, it is the same
        assert ours == theirs


@given(SIDES, SIDES)
def test_qwen_with_its_models_numbers_is_exact_or_at_its_floor(
    smart_resize: Any, width: int, height: int
) -> None:
    if max(width, height) > MAX_RATIO * min(width, height):
        return
    rule = QwenVl(32, 65_536, 16_777_216)
    rows, columns = smart_resize(height, width, 32, min_pixels=65_536, max_pixels=16_777_216)
    assert rule.bound(Size(width, height)) == rows * columns // 32**2
    assert rule.bound(None) == 16_384


def test_qwens_examples() -> None:
    rule = QwenVl(28, 56 * 56, 28 * 28 * 1280)
    assert rule.bound(Size(1, 1)) == 4
    assert rule.bound(Size(280, 560)) == 200
    assert rule.bound(Size(4000, 3000)) == 1230
    assert rule.bound(Size(1, 201)) is None


# --- Pixtral ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pixtral_size() -> Any:
    names = ("_num_image_tokens", "get_resize_output_image_size")
    return processors_own("pixtral/image_processing_pil_pixtral", *names)[names[1]]


@given(SIDES, SIDES, st.sampled_from([14, 16, 28]), st.sampled_from([16, 1000, 1024, 1540]))
@example(1, 20_000, 16, 1024)
def test_pixtral_is_never_below_its_processor(
    pixtral_size: Any, width: int, height: int, patch: int, edge: int
) -> None:
    rule = Pixtral(patch, edge)
    both = [
        pixtral_size((h, w), (edge, edge), (patch, patch))
        for h, w in ((height, width), (width, height))
    ]
    theirs = max((w // patch + 1) * (h // patch) for h, w in both)
    ours, most = rule.bound(Size(width, height)), rule.bound(None)
    assert ours is not None
    assert most is not None
    assert theirs <= ours <= most
    if max(width, height) <= edge:
        assert ours == theirs


def test_pixtrals_examples() -> None:
    assert Pixtral(16, 1024).bound(Size(512, 256)) == 32 * 17
    assert Pixtral(16, 1024).bound(None) == 64 * 65


# --- tiles, fixed -----------------------------------------------------------------------------


@given(SIDES, SIDES, st.integers(1, 16))
def test_tiles_are_never_below_their_grid(width: int, height: int, most: int) -> None:
    names = ("get_all_supported_aspect_ratios", "get_optimal_tiled_canvas")
    canvas = processors_own("got_ocr2/image_processing_pil_got_ocr2", *names)[names[1]]
    columns, rows = canvas((height, width), (448, 448), 1, most)
    tiles = columns * rows + (columns * rows > 1)
    ours = Tiles(256, most).bound(Size(width, height))
    assert ours is not None
    assert tiles * 256 <= ours <= (most + 1) * 256


def test_tiles_and_fixed_are_the_same_for_every_size() -> None:
    assert Tiles(256, 12).bound(None) == Tiles(256, 12).bound(Size(1, 1)) == 13 * 256
    assert Tiles(256, 12, thumbnail=False).bound(None) == 12 * 256
    assert Tiles(256, 1).bound(None) == 256
    assert Fixed(576).bound(None) == Fixed(576).bound(Size(9, 9)) == 576


# --- the sum ----------------------------------------------------------------------------------

IMAGE, AUDIO = MediaPart(Kind.IMAGE), MediaPart(Kind.AUDIO)
RULES = Rules({Kind.IMAGE: FAMILIES["fixed"](tokens=100), Kind.AUDIO: Fixed(7)}, max_parts=3)


def test_parts_add_up_with_what_is_around_them() -> None:
    assert bound([IMAGE, AUDIO, IMAGE], RULES) == 207 + 3 * AROUND


@pytest.mark.parametrize(
    "parts", [[IMAGE, MediaPart(Kind.VIDEO)], [MediaPart(Kind.FILE)], [IMAGE] * 4]
)
def test_a_part_without_a_rule_or_one_too_many_leaves_no_bound(parts: list[MediaPart]) -> None:
    assert bound(parts, RULES) is None


def test_what_is_elsewhere_has_a_bound_only_where_that_is_wanted() -> None:
    remote = MediaPart(Kind.IMAGE, elsewhere=True)
    assert bound([remote], Rules(RULES.by_kind)) == 100 + AROUND
    assert bound([remote], Rules(RULES.by_kind, fetching=False)) is None
    assert bound([IMAGE], Rules(RULES.by_kind, fetching=False)) == 100 + AROUND


def test_an_image_of_no_known_size_has_the_familys_maximum() -> None:
    rules = Rules({Kind.IMAGE: QwenVl(28, 56 * 56, 28 * 28 * 1280)})
    assert bound([MediaPart(Kind.IMAGE, b"junk")], rules) == 1280 + AROUND
