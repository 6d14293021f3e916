"""What may be said of a backend's queue."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.settings import NoSecrets, Settings, SettingsError, parse
from gateway.settings.explain import explain
from gateway.settings.queue import Queue


def with_queue(queue: Any) -> Settings:
    return parse({"backends": [{"name": "a", "url": "http://h", "queue": queue}]}, NoSecrets())


def test_there_is_none_unless_it_is_written() -> None:
    assert with_queue(None).backends[0].queue is None
    assert "at once at most" not in explain(with_queue(None))


@pytest.mark.parametrize(
    ("written", "expected", "told"),
    [
        (
            {"concurrent": 8},
            Queue(concurrent=8, max_wait="10s", max_waiting=1000),
            "sent 8 requests at once at most; tenants wait in fair turns\n"
            "  - 1000 requests may wait, 10s each, else 429\n",
        ),
        (
            {"prompt_tokens": 9, "max_wait": "1m", "max_waiting": 0},
            Queue(prompt_tokens=9, max_wait="60s", max_waiting=0),
            "sent 9 prompt tokens at once at most; tenants wait in fair turns\n"
            "  - what is more is refused with 429\n",
        ),
        (
            {"concurrent": 8, "prompt_tokens": 9, "max_waiting_per_tenant": 5},
            Queue(concurrent=8, prompt_tokens=9, max_waiting_per_tenant=5),
            "sent 8 requests and 9 prompt tokens at once at most; tenants wait in fair turns\n"
            "  - 1000 requests may wait, 5 of one tenant, 10s each, else 429\n",
        ),
    ],
)
def test_what_is_written_is_read_and_told(
    written: dict[str, Any], expected: Queue, told: str
) -> None:
    settings = with_queue(written)
    assert settings.backends[0].queue == expected
    assert told in explain(settings)


@pytest.mark.parametrize(
    "queue",
    [
        {},
        {"max_wait": "1s"},
        {"concurrent": 0},
        {"prompt_tokens": -1},
        {"concurrent": 1, "max_wait": "0s"},
        {"concurrent": 1, "max_waiting": -1},
        {"concurrent": 1, "max_waiting_per_tenant": 0},
        {"concurrent": 1, "weight": 2},
    ],
)
def test_what_says_nothing_or_cannot_be_is_refused(queue: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        with_queue(queue)
    assert all(problem.path.startswith("backends[0].queue") for problem in caught.value.problems)


@pytest.mark.parametrize(("weight", "told"), [(2.5, True), (1, False)])
def test_a_tenants_weight_is_told_where_it_is_not_as_anyones(weight: float, told: bool) -> None:
    policies = {"default": {"weight": weight}}
    backends = [{"name": "a", "url": "http://h", "queue": {"concurrent": 1}}]
    text = explain(parse({"backends": backends, "policies": policies}, NoSecrets()))
    assert ("  - its weight in queues: 2.5\n" in text) is told
