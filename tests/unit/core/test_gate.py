"""The deploy gate's judgement."""

import pytest

from gateway.core import capacity
from gateway.core.gate import Exit, Level, continues, evaluate, transfer_finding
from gateway.types import Books, Role, WorkerFacts


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


# --- both legs' books --------------------------------------------------------------------------


def legs(prefill, decode):
    return {Role.PREFILL: Books(*prefill), Role.DECODE: Books(*decode)}


@pytest.mark.parametrize(
    ("now", "level", "says"),
    [
        (None, Level.ADVICE, "not exposed"),
        (legs((0, 0), (0, 0)), Level.PASS, "0 prompt tokens"),
        (legs((3, 3000), (3, 3000)), Level.PASS, "3000 of 3"),
        (legs((4, 3500), (3, 3000)), Level.PASS, "3500 prompt tokens of 4"),  # one under way
        (legs((3, 2001), (3, 702_000)), Level.FAIL, "699999 prompt tokens were never sent"),
        (legs((1, 10), (3, 3000)), Level.ADVICE, "not comparable"),  # prefill was started again
        (legs((3, 3000, 2), (3, 3000, None)), Level.PASS, "2 transfers failed"),
    ],
)
def test_decode_is_never_ahead_of_prefill(now, level, says):
    finding = transfer_finding(now)
    assert (finding.check, finding.level) == ("transfer", level)
    assert says in finding.text


@pytest.mark.parametrize(
    ("decoded", "level"), [(1000, Level.PASS), (5096, Level.PASS), (5097, Level.FAIL)]
)
def test_what_was_in_flight_may_be_counted_by_decode_alone(decoded, level):
    before = legs((5, 9000), (2, 2000))
    now = legs((6, 10_000), (4, 2000 + decoded))
    assert transfer_finding(now, before, slack=4096).level is level


def test_counts_that_fell_are_another_processs():
    before = legs((5, 9000), (2, 2000))
    assert continues(before, before)
    assert continues(before, legs((6, 9001), (2, 2000)))
    assert not continues(before, legs((0, 0), (2, 2000)))
    assert not continues(before, legs((5, 9000), (3, 1999)))


def test_a_failed_transfer_check_fails_the_gate():
    snap = snapshot(worker())
    failed = transfer_finding(legs((3, 2001), (3, 702_000)))
    assert evaluate(snap, context=None, headroom=1.25).exit is Exit.PASS
    assert evaluate(snap, context=None, headroom=1.25, transfer=failed).exit is Exit.FAIL
    unknown = transfer_finding(None)
    assert evaluate(snap, context=None, headroom=1.25, transfer=unknown).exit is Exit.PASS
