"""What is said of the choice among backends."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.settings import NoSecrets, explain, parse

TWO = [{"name": "a", "url": "http://h"}, {"name": "b", "url": "http://i"}]


def explained(backends: list[dict[str, Any]] = TWO, **written: Any) -> str:
    return explain(parse({"backends": backends, **written}, NoSecrets()))


@pytest.mark.parametrize(
    ("routing", "said"),
    [
        ({}, "least outstanding prompt tokens"),
        ({}, "fails 5 times in a row is left out for 30s and longer each time, 5m at most"),
        ({"policy": "affinity"}, "prompts that begin alike go to one while it has under 1.25"),
        ({"policy": "affinity"}, "the key of that choice is of this process alone"),
        ({"policy": "affinity", "secret": "k" * 16}, "the key of that choice is shared"),
        ({"policy": "affinity", "session": "user"}, "requests of one user"),
        (
            {"policy": "affinity", "session": "header", "session_header": "X-Chat"},
            "requests with one x-chat",
        ),
        ({"ejection": {"consecutive_failures": 0}}, "one that fails is NEVER left out"),
    ],
)
def test_the_choice_is_said_in_words(routing: dict[str, Any], said: str) -> None:
    assert said in explained(routing=routing)


def test_nothing_is_said_of_a_choice_where_there_is_none() -> None:
    assert "Among a model's backends" not in explained(TWO[:1])


def test_a_deadline_that_grows_is_told() -> None:
    waits = {"first_byte": "30s", "first_byte_per_1k_tokens": "2s"}
    assert "first byte 30s and 2s more for each 1,000 prompt tokens" in explained(timeouts=waits)
    assert "more for each" not in explained()


def test_the_secret_is_not_said() -> None:
    secret = "LEAKMARK-LEAKMARK"
    assert secret not in explained(routing={"policy": "affinity", "secret": secret})
