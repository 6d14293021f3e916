"""Both legs' counts, from pages of metrics."""

from __future__ import annotations

import pytest

from gateway.engines.base import Answer
from gateway.engines.sglang_books import PROBE, books
from gateway.types import Books, Role


def page(*lines: str, status: int = 200) -> dict:
    return {PROBE: Answer(status, "\n".join(lines).encode())}


def series(leg: str | None, tokens: float, requests: float, *, stream: str = "false") -> list[str]:
    named = "" if leg is None else f'engine_type="{leg}",'
    return [
        f'sglang:prompt_tokens_total{{{named}is_streaming="{stream}",model_name="m"}} {tokens}',
        f'sglang:num_requests_total{{{named}is_streaming="{stream}",model_name="m"}} {requests}',
    ]


def test_a_legs_own_page():  # series as SGLang 0.5.23 wrote them, but for the leg
    told = page(*series("prefill", 1396.0, 20.0), *series("prefill", 70.0, 7.0, stream="true"))
    assert books(told, Role.PREFILL, alone=True) == Books(27, 1466)
    assert books(told, Role.DECODE, alone=True) is None  # another leg answers there


@pytest.mark.parametrize("leg", [None, "unified"])
def test_series_that_name_no_leg_are_those_of_the_only_one(leg):
    told = page(*series(leg, 100.0, 2.0))
    assert books(told, Role.DECODE, alone=True) == Books(2, 100)
    assert books(told, Role.DECODE, alone=False) is None


def test_a_page_of_both():
    failed = 'sglang:num_transfer_failed_reqs_total{engine_type="decode"} 3.0'
    told = page(*series("prefill", 1.0, 1.0), *series("decode", 700_000.0, 1.0), failed)
    assert books(told, Role.PREFILL, alone=False) == Books(1, 1)
    assert books(told, Role.DECODE, alone=False) == Books(1, 700_000, 3)


@pytest.mark.parametrize(
    "told",
    [
        {},
        page("not found", status=404),
        page("<html>"),
        page(series("prefill", 1.0, 1.0)[0]),  # tokens without requests
        page('sglang:prompt_tokens_total{engine_type="prefill"} many', *series(None, 1.0, 1.0)[1:]),
    ],
)
def test_what_is_not_told_is_unknown(told):
    assert books(told, Role.PREFILL, alone=True) is None
