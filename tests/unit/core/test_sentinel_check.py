"""Verdicts and findings of the sentinel check."""

from __future__ import annotations

import pytest

from gateway.core.sentinel import Partial, Sighting
from gateway.core.sentinel_check import judge_rest, judge_sentinel, readable
from gateway.types import (
    Action,
    ChatPrompt,
    Evidence,
    OpaquePrompt,
    ParsedRequest,
    TextPrompt,
    TokenIdPrompt,
    Verdict,
)

SEEN = Sighting((1, 2, 3, 4, 5, 6, 7, 8), 20000, 77, own=False, in_date=True)


@pytest.mark.parametrize(
    ("confirmed", "reason", "evidence"),
    [(True, "foreign", Evidence.CERTAIN), (False, "unconfirmed", Evidence.STRONG)],
)
def test_a_foreign_sentinel_is_a_leak_and_forgeable(confirmed, reason, evidence):
    finding = judge_sentinel(SEEN, "bob", 12, Action.BLOCK, confirmed=confirmed)

    assert finding.result.verdict is Verdict.LEAK
    assert finding.result.suspect
    assert finding.result.reason == reason
    assert finding.evidence is evidence
    assert finding.forgeable
    assert finding.source == "bob"
    assert finding.numbers == {"epoch": 20000, "place": 12}


@pytest.mark.parametrize(
    ("gap", "partial", "verdict", "reason"),
    [
        (None, None, Verdict.OK, ""),
        ("too_large", None, Verdict.UNVERIFIABLE, "too_large"),
        (None, Partial("bob", 6), Verdict.MISMATCH, "partial"),
        ("not_json", Partial("bob", 6), Verdict.MISMATCH, "partial"),
    ],
)
def test_the_rest_is_never_suspect(gap, partial, verdict, reason):
    result = judge_rest(gap, partial)

    assert (result.verdict, result.reason, result.suspect) == (verdict, reason, False)


@pytest.mark.parametrize(
    ("prompt", "media", "all_read"),
    [
        (ChatPrompt("openai_chat", {}), False, True),
        (ChatPrompt("openai_chat", {}), True, False),
        (TextPrompt(("x",)), False, True),
        (TokenIdPrompt((3,), 9), False, False),
        (OpaquePrompt("server_history"), False, False),
    ],
)
def test_only_text_can_be_searched(prompt, media, all_read):
    request = ParsedRequest("d", "/", b"", {}, "m", False, prompt)

    assert readable(request, shows_media=media) is all_read
