"""The first line: each thing that can be wrong, in words and with its numbers."""

from __future__ import annotations

import pytest

from gateway.core.troubles import verdict

FACT = {
    "worker": "http://w",
    "role": "prefill",
    "pool_tokens": 2_000_000,
    "context_tokens": 1_048_576,
    "max_prompt_tokens": 1_048_569,
}
WELL = {
    "name": "glm",
    "limit": {"state": "known", "max_prompt_tokens": 1_048_569, "set_by": "http://w", "age_s": 1.0},
    "standing": {
        "state": "serving",
        "reason": "",
        "for_s": None,
        "held_by_max_share": False,
        "incidents": [],
    },
    "ejection": {"state": "in_service", "reason": None, "ejections": 0, "for_s": None},
    "workers": [{"worker": "http://w", "trouble": None, "facts": [FACT]}],
    "contradictions": [],
    "calibration": None,
    "suspect_floor": 4096,
    "unknown_limit_allowed": False,
}
OUT = {
    "state": "quarantined",
    "reason": "binding",
    "for_s": 185.0,
    "held_by_max_share": False,
    "incidents": ["inc_1", "inc_2"],
}
SUSPECT = OUT | {"state": "suspect", "reason": "latency", "for_s": 7300.0, "incidents": ["inc_1"]}
EJECTED = {"state": "ejected", "reason": "connect", "ejections": 2, "for_s": 61.0}
UNKNOWN = {"state": "unknown", "reason": "no worker has answered yet"}


def backend(name="glm", *, fact=None, trouble=None, **more):
    worker = {"worker": "http://w", "trouble": trouble, "facts": [FACT | (fact or {})]}
    return WELL | {"name": name, "workers": [worker]} | more


def limit(tokens):
    return WELL["limit"] | {"max_prompt_tokens": tokens}


def told(*backends, **more):
    return verdict({"backends": list(backends), **more})


@pytest.mark.parametrize(
    ("backends", "headline", "level"),
    [
        ([WELL], "glm is serving", "ok"),
        ([backend("a"), backend("b")], "All 2 backends serving", "ok"),
        (
            [backend("a"), backend("b", trouble="timed out")],
            "All 2 backends serving, 1 thing to look at",
            "warning",
        ),
        ([backend("a"), backend("b", standing=OUT)], "1 of 2 backends serving", "danger"),
        ([backend("a", limit=UNKNOWN)], "a is not serving", "danger"),
        (
            [backend("a", limit=UNKNOWN, unknown_limit_allowed=True)],
            "a is serving, 1 thing to look at",
            "danger",
        ),
        (
            [backend("a", limit=UNKNOWN), backend("b", standing=OUT)],
            "0 of 2 backends serving",
            "danger",
        ),
        ([], "No worker process answers", "danger"),
        ([backend("a"), backend("b", ejection=EJECTED)], "1 of 2 backends serving", "warning"),
        (
            [backend("a", ejection=EJECTED | {"state": "half_open"})],
            "a is serving, 1 thing to look at",
            "warning",
        ),
    ],
)
def test_the_headline_says_how_many_serve(backends, headline, level):
    found = told(*backends)
    assert found["headline"] == headline
    assert found["level"] == level


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (
            backend(standing=OUT),
            "danger",
            "quarantined for 3 min (binding, 2 incidents): nothing is sent to it",
        ),
        (
            backend(standing=OUT | {"reason": "canary", "for_s": None, "incidents": []}),
            "warning",
            "a canary: nothing is sent to it until a probe of it is clean",
        ),
        (
            backend(standing=SUSPECT),
            "warning",
            "suspect for 2 h (latency, 1 incident): it is sent no prompt over 4,096 tokens",
        ),
        (
            backend(standing=SUSPECT | {"held_by_max_share": True, "for_s": 3.2}),
            "warning",
            "suspect for 3 s (latency, 1 incident): it is sent no prompt over 4,096 tokens; "
            "quarantined but for the cap, quarantine.max_share",
        ),
        (
            backend(limit=UNKNOWN),
            "danger",
            "its limit is unknown, prompts are refused with 503: no worker has answered yet",
        ),
        (
            backend(limit=UNKNOWN, unknown_limit_allowed=True),
            "danger",
            "its limit is unknown, prompts pass unchecked: no worker has answered yet",
        ),
        (
            backend(limit={"state": "unsafe", "reason": "cuts"}, unknown_limit_allowed=True),
            "danger",
            "its limit is unsafe, prompts are refused with 503: cuts",
        ),
        (
            backend(trouble="timed out"),
            "warning",
            "worker http://w does not answer: timed out",
        ),
        (
            backend(contradictions=["w publishes 9 tokens but refused a prompt naming 8"]),
            "warning",
            "worker w publishes 9 tokens but refused a prompt naming 8",
        ),
        (
            backend(calibration={"state": "differs", "differences": [1, 2, 3]}),
            "warning",
            "our token counts differ from the engine's on 3 samples",
        ),
        (
            backend(fact={"pool_tokens": 681_280}, limit=limit(681_273)),
            "warning",
            "the KV pool of prefill worker http://w holds 681,280 tokens, 367,296 fewer than the "
            "context of 1,048,576 it advertises; prompts over 681,273 are refused with 400",
        ),
        (
            backend(fact={"pool_tokens": 681_280}),
            "danger",
            "the KV pool of prefill worker http://w holds 681,280 tokens, 367,296 fewer than the "
            "context of 1,048,576 it advertises, and prompts up to 1,048,569 are sent to it",
        ),
    ],
)
def test_each_trouble_in_words_and_numbers(found, level, text):
    assert told(found)["troubles"] == [{"level": level, "backend": "glm", "text": text}]


def test_a_short_pool_under_an_unknown_limit_is_told_beside_it():
    found = told(backend(fact={"pool_tokens": 681_280}, limit=UNKNOWN))
    assert [one["level"] for one in found["troubles"]] == ["danger", "danger"]
    assert found["troubles"][1]["text"].endswith("the context of 1,048,576 it advertises")


def test_ranks_that_are_alike_are_told_once():
    short = FACT | {"pool_tokens": 1_000_000}
    facts = [short | {"worker": f"w#{rank}"} for rank in range(8)]
    facts.append(short | {"worker": "w#8", "pool_tokens": 900_000})
    worker = {"worker": "w", "trouble": None, "facts": facts}
    texts = [one["text"] for one in told(WELL | {"workers": [worker]})["troubles"]]
    assert [text.split(" tokens,")[0] for text in texts] == [
        "the KV pool of each of 8 prefill workers (w#0, ...) holds 1,000,000",
        "the KV pool of prefill worker w#8 holds 900,000",
    ]


@pytest.mark.parametrize(
    "fact", [{"pool_tokens": None}, {"context_tokens": None}, {"pool_tokens": 1_048_576}]
)
def test_no_shortfall_where_none_is_known(fact):
    assert told(backend(fact=fact))["troubles"] == []


@pytest.mark.parametrize(
    ("more", "level", "text"),
    [
        (
            {"draining": True},
            "warning",
            "draining: it takes no new connections and will end",
        ),
        (
            {"limits": {"store": "redis", "up": False, "when_store_fails": "refuse"}},
            "danger",
            "the store of quotas (redis) does not answer: requests are refused",
        ),
        (
            {"limits": {"store": "redis", "up": False, "when_store_fails": "allow"}},
            "warning",
            "the store of quotas (redis) does not answer: requests pass without quotas",
        ),
        (
            {"processes": [{"state": "up"}, {"state": "starting"}, {"state": "absent"}]},
            "warning",
            "2 of 3 worker processes are not up",
        ),
    ],
)
def test_the_gateways_own_troubles(more, level, text):
    assert told(WELL, **more)["troubles"] == [{"level": level, "backend": "", "text": text}]


def test_the_worst_comes_first():
    found = told(backend("a", trouble="timed out"), backend("b", standing=OUT))
    assert [(one["backend"], one["level"]) for one in found["troubles"]] == [
        ("b", "danger"),
        ("a", "warning"),
    ]


def test_an_ejection_is_told_with_its_reason_and_its_end():
    [trouble] = told(backend("a"), backend("b", ejection=EJECTED))["troubles"]
    assert trouble["backend"] == "b"
    assert trouble["text"] == (
        "ejected after failures in a row (connect; ejection 2), for another 1 min: "
        "nothing is sent to it"
    )
