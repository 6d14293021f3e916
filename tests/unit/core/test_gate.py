"""The deploy gate's judgement."""

import pytest

from gateway.core import capacity
from gateway.core.gate import Exit, Level, evaluate
from gateway.types import Role, WorkerFacts


def snapshot(*facts, silent=()):
    workers = {fact.worker: capacity.Seen((fact,), 0.0) for fact in facts}
    workers |= {name: capacity.Seen(trouble="connection refused") for name in silent}
    return capacity.Snapshot(workers)


def worker(name="a", pool=1_310_720, context=1_048_576, limit=1_048_569, **more):
    return WorkerFacts(
        worker=name,
        engine="sglang",
        version="0.5.23",
        pool_tokens=pool,
        context_tokens=context,
        max_prompt_tokens=limit,
        **more,
    )


def judge(*facts, context=None, headroom=1.25, silent=()):
    return evaluate(snapshot(*facts, silent=silent), context=context, headroom=headroom)


def levels(report, check):
    return [finding.level for finding in report.findings if finding.check == check]


def test_a_pool_that_covers_context_with_headroom_passes():
    assert judge(worker()).exit is Exit.PASS


def test_the_incident_fails():
    report = judge(worker(pool=681_280, limit=681_273))
    assert report.exit is Exit.FAIL
    assert levels(report, "pool") == [Level.FAIL]
    assert levels(report, "limit") == [Level.FAIL]
    assert any("681280" in finding.text for finding in report.findings)


def test_headroom_is_counted():
    just_context = worker(pool=1_048_576)
    assert judge(just_context).exit is Exit.FAIL
    assert judge(just_context, headroom=1.0).exit is Exit.PASS
    assert judge(worker(pool=1_310_719)).exit is Exit.FAIL


def test_one_small_worker_among_many_fails():
    decode = worker("d", pool=681_280, limit=681_273, role=Role.DECODE)
    assert judge(worker(), decode).exit is Exit.FAIL


def test_the_promised_context_may_be_larger_than_the_advertised_one():
    report = judge(worker(pool=200_000, context=100_000, limit=99_993), context=300_000)
    assert report.exit is Exit.FAIL


@pytest.mark.parametrize("missing", ["pool", "limit"])
def test_what_is_not_exposed_fails_closed_with_its_own_code(missing):
    assert judge(worker(**{missing: None})).exit is Exit.NOT_EXPOSED


def test_a_silent_worker_and_no_worker_fail_closed():
    assert judge(worker(), silent=["b"]).exit is Exit.NOT_EXPOSED
    assert judge().exit is Exit.NOT_EXPOSED


def test_silent_truncation_fails():
    report = judge(worker(truncates="allow_auto_truncate"))
    assert report.exit is Exit.FAIL
    assert levels(report, "truncation") == [Level.FAIL]


def test_a_known_bad_version_in_pd_mode_fails():
    bad = WorkerFacts(
        worker="a",
        engine="sglang",
        version="0.5.19",
        pool_tokens=2_000_000,
        context_tokens=1_000_000,
        max_prompt_tokens=999_993,
        role=Role.PREFILL,
        disaggregated=True,
    )
    report = judge(bad)
    assert report.exit is Exit.FAIL
    assert levels(report, "version") == [Level.FAIL]


def test_a_missing_checksum_is_advice_and_does_not_block():
    legs = (
        worker(name, role=role, disaggregated=True, kv_checksum=False)
        for name, role in (("p", Role.PREFILL), ("d", Role.DECODE))
    )
    report = judge(*legs)
    assert levels(report, "kv_checksum") == [Level.ADVICE, Level.ADVICE]
    assert report.exit is Exit.PASS
    assert levels(judge(worker(disaggregated=True, kv_checksum=True)), "kv_checksum") == []


def test_a_version_without_the_checksum_is_not_told_to_use_its_flag():
    """SGLang 0.5.19 and 0.5.20 (docs/reproduction.md) do not know it and would not start."""
    report = judge(worker(disaggregated=True, kv_checksum=None))
    [told] = [finding.text for finding in report.findings if finding.check == "kv_checksum"]
    assert "update to a version that has" in told


def test_a_certain_failure_weighs_more_than_what_is_not_exposed():
    assert judge(worker(pool=1), silent=["b"]).exit is Exit.FAIL


def test_a_disaggregated_engine_shows_both_legs():
    prefill = worker("p", role=Role.PREFILL, disaggregated=True, kv_checksum=True)
    decode = worker("d", role=Role.DECODE, disaggregated=True, kv_checksum=True)
    both = judge(prefill, decode)
    assert both.exit is Exit.PASS
    assert levels(both, "legs") == [Level.PASS]
    for seen, missing in ((prefill, "decode"), (decode, "prefill")):
        report = judge(seen)
        assert report.exit is Exit.NOT_EXPOSED
        [text] = [finding.text for finding in report.findings if finding.check == "legs"]
        assert missing in text
    assert levels(judge(worker()), "legs") == []


def test_what_an_engine_notes_is_shown_and_never_blocks():
    report = judge(worker(notes=("only 2 of 8 DP ranks are shown",)))
    assert report.exit is Exit.PASS
    assert levels(report, "note") == [Level.ADVICE]
