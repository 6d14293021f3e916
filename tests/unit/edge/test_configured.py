"""Settings in the words of the request path."""

from __future__ import annotations

import pytest

from gateway.core.quarantine import Rules
from gateway.edge.configured import check_policy, quarantine_rules, wiring
from gateway.edge.inspection import CheckPolicy
from gateway.settings import NoSecrets, parse
from gateway.types import Action


def settings(backend=None, **integrity):
    entry = {"name": "a", "url": "http://h", **(backend or {})}
    return parse({"backends": [entry], "integrity": integrity}, NoSecrets())


def test_the_defaults():
    assert check_policy(settings().integrity) == CheckPolicy(latency=Action.FLAG)
    assert quarantine_rules(settings().integrity.quarantine) == Rules()


@pytest.mark.parametrize(
    ("check", "word", "action"),
    [
        ("latency", "off", None),
        ("latency", "hold", Action.BLOCK),
        ("latency", "quarantine", Action.QUARANTINE),
        ("binding", "off", None),
        ("binding", "quarantine", Action.QUARANTINE),
        ("completeness", "flag", Action.FLAG),
        ("cached_tokens", "quarantine", Action.QUARANTINE),
        ("prompt_tokens", "block", Action.BLOCK),
    ],
)
def test_words_become_actions(check, word, action):
    policy = check_policy(settings(**{check: {"action": word}}).integrity)
    assert getattr(policy, check) is action


@pytest.mark.parametrize(
    ("flagged", "withholds"),
    [(set(), True), ({"completeness"}, False), ({"completeness", "cached_tokens"}, False)],
)
def test_a_streams_end_is_held_only_where_a_check_may_withhold_it(flagged, withholds):
    checks = {check: {"action": "flag"} for check in flagged}
    assert check_policy(settings(**checks).integrity).may_withhold_end is withholds


def test_a_salt_is_ours_alone_where_nobody_else_can_have_its_key():
    def ours(alone, **backend):
        return wiring(settings(backend).backends[0], None, b"k", alone=alone).salt_is_ours

    assert ours(True)
    assert not ours(False)  # other processes of this gateway have the same
    assert not ours(True, salt_secret="sixteen characters")
