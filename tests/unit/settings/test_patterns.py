from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.patterns import covers, overlap

PATTERNS = st.text("ab*?", max_size=6)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("*", "anything", True),
        ("glm-*", "glm-5", True),
        ("glm-*", "*-5", True),
        ("glm-*", "qwen3-*", False),
        ("glm-*", "GLM-5", False),
        ("glm", "glm-5", False),
        ("a?c", "abc", True),
        ("[ab]c", "bc", True),
        ("a[", "a[", True),
        ("", "", True),
        ("", "a", False),
        ("", "*", True),
    ],
)
def test_patterns_with_a_model_in_common(one: str, other: str, common: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is common


@given(PATTERNS, PATTERNS)
def test_an_overlap_is_a_name_that_both_cover(one: str, other: str) -> None:
    names = map(
        "".join,
        itertools.chain.from_iterable(
            itertools.product("ab", repeat=length) for length in range(8)
        ),
    )
    found = any(covers(one, name) and covers(other, name) for name in names)
    if found:
        assert overlap(one, other)
    elif len(one) + len(other) <= 7:  # the shortest common name is no longer than both together
        assert not overlap(one, other)
