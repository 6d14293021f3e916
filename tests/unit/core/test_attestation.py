"""Cached tokens against what the tenant ever sent: memory, texts, verdict."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import attestation
from gateway.core.attestation import (
    PROOFS,
    PromptMemory,
    Report,
    fits_by_bytes,
    judge_cached,
    report,
    texts_of,
    unseen,
)
from gateway.core.prefixes import DIGEST, STEP, chain, encoded, seed
from gateway.dialects import routes
from gateway.types import CheckResult, Usage, Verdict


class Tenants:
    """A memory as requests use it."""

    def __init__(self):
        self.memory = PromptMemory()

    def send(self, tenant, *texts):
        parts = [encoded(text) for text in texts]
        chains = [chain([part], seed(b"secret", tenant)) for part in parts]
        return unseen(parts, self.memory.take(chains))


def words(start, count):
    return " ".join(f"w{n}" for n in range(start, start + count))


def test_a_text_is_new_once_but_for_a_first_step_that_may_be_shared():
    text, tenants = words(0, 400), Tenants()
    assert tenants.send("a", text) == (text[STEP:].strip(),)
    assert tenants.send("a", text) == ()


def test_a_longer_text_is_new_from_where_it_goes_on():
    text, tenants = words(0, 400), Tenants()
    tenants.send("a", text)
    [rest] = tenants.send("a", text + " " + words(400, 400))
    assert rest.endswith("w799")
    assert len(text) - STEP < len(text) + 1 + len(words(400, 400)) - len(rest) <= len(text) + STEP


def test_a_text_that_begins_otherwise_is_new():
    text, tenants = words(0, 400), Tenants()
    tenants.send("a", text)
    assert tenants.send("a", "x" + text) == (("x" + text)[STEP:].strip(),)


def test_tenants_do_not_share_what_they_sent():
    text, tenants = words(0, 400), Tenants()
    tenants.send("a", text)
    assert tenants.send("b", text) != ()


def test_a_character_cut_at_a_step_is_left_out():
    [rest] = Tenants().send("a", "x" + "é" * STEP)
    assert rest == "é" * (STEP // 2)


def test_nothing_short_is_called_new():
    assert Tenants().send("a", "x" * STEP, "", "y") == ()


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 5)), max_size=12)
)
def test_what_a_tenant_sent_is_never_called_new(sent):
    """Against a model that keeps all texts: what is called new was in no earlier text there."""
    tenants, earlier = Tenants(), {"a": [], "b": []}
    for tenant, start, length in sent:
        text = words(start * 1000, 150 * length)
        shared = max((_common(text, old) for old in earlier[tenant]), default=0)
        called_new = sum(map(len, tenants.send(tenant, text)))
        assert called_new <= len(text) - shared
        assert called_new >= len(text) - shared - 2 * STEP
        earlier[tenant].append(text)


def _common(one, other):
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def test_a_full_memory_forgets_the_oldest_and_keeps_what_is_in_use(monkeypatch):
    monkeypatch.setattr(attestation, "_PER_GENERATION", 8)
    tenants, old, used = Tenants(), words(0, 400), words(5000, 400)
    tenants.send("a", old)
    tenants.send("a", used)
    for n in range(4):
        tenants.send("a", words(10_000 * (n + 1), 400))
        assert tenants.send("a", used) == ()
    assert tenants.send("a", old) != ()


DIGESTS = st.lists(st.binary(min_size=DIGEST, max_size=DIGEST), max_size=6)


@given(st.lists(st.tuples(st.booleans(), st.lists(DIGESTS, max_size=3)), max_size=6))
def test_one_by_one_is_as_many_at_a_time(taken):
    """The same is known and the same kept, and what is there twice at once is new twice."""
    mixed, by_arrays = PromptMemory(), PromptMemory()
    for few, chains in taken:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attestation, "_FEW", 0)
            expected = by_arrays.take(chains)
            patch.setattr(attestation, "_FEW", 100 if few else 0)
            assert mixed.take(chains) == expected
    assert mixed._held == by_arrays._held
    assert (mixed._young == by_arrays._young).all()


# --- texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "x"}]},
                    {"role": "assistant", "content": "not me"},
                    {"role": "tool", "content": "t", "tool_call_id": "1"},
                ],
                "tools": [{"type": "function", "function": {"name": "not me"}}],
            },
            ("s", "u", "t"),
        ),
        (
            "/v1/messages",
            {
                "system": [{"type": "text", "text": "s"}],
                "messages": [{"role": "user", "content": "u"}],
                "max_tokens": 1,
            },
            ("s", "u"),
        ),
        ("/v1/responses", {"input": "u", "instructions": "i"}, ("i", "u")),
        (
            "/v1/responses",
            {
                "input": [
                    {"type": "message", "role": "user", "content": [{"text": "u"}]},
                    {"type": "function_call_output", "output": "not me", "call_id": "1"},
                ]
            },
            ("u",),
        ),
        ("/v1/completions", {"prompt": "whole"}, None),
        ("/generate", {"text": "whole"}, None),
    ],
)
def test_the_texts_that_every_template_renders(path, body, expected):
    raw = msgspec.json.encode({"model": "m", **body})
    assert texts_of(routes.match("POST", path).parse(path, raw)) == expected


# --- verdict ----------------------------------------------------------------------------------


def test_a_report_needs_numbers_that_agree():
    assert report(100, Usage(100, 1, 5), ("x",)) == Report(100, 5, ("x",))
    for usage in (None, Usage(100, 1, None)):
        assert report(100, usage, ()).reason == "not_reported"
    assert report(100, Usage(99, 1, 5), ()).reason == "count_differs"


def verdict(cached, unseen_tokens, proved=PROOFS):
    result = judge_cached(Report(1000, cached, ("text",)), unseen_tokens, proved=proved)
    assert isinstance(result, CheckResult)
    return result.verdict, result.reason


def test_cached_and_never_sent_do_not_fit_into_one_prompt():
    assert verdict(418, 600) == (Verdict.OK, "")  # slack for one text: 18
    assert verdict(419, 600) == (Verdict.LEAK, "never_sent")


def test_an_engine_that_never_showed_it_counts_well_is_not_accused():
    assert verdict(900, 600, proved=PROOFS - 1) == (Verdict.UNVERIFIABLE, "unproven")


def test_bytes_alone_settle_most():
    assert fits_by_bytes(Report(1000, 0, ("x" * 5000,)))
    assert fits_by_bytes(Report(1000, 900, ("x" * 100,)))
    assert not fits_by_bytes(Report(1000, 901, ("é" * 50,)))


def test_only_unseen_text_enough_tells_whether_an_engine_counts_well():
    assert not Report(1000, 0, ("x" * 1023,)).telling
    assert Report(1000, 0, ("é" * 512,)).telling
