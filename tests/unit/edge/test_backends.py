"""A backend's limit, worked out once a snapshot and never kept past its time."""

from types import SimpleNamespace

from gateway.core import capacity as c
from gateway.core.admission import Outcomes
from gateway.core.latency import PrefillModel
from gateway.edge.backends import MODELS_REMEMBERED, Backend, Wiring
from gateway.types import WorkerFacts


def backend(name="a", models=("*",), stale_after=60.0):
    clock = SimpleNamespace(now=0.0)
    wiring = Wiring(
        name=name,
        url="http://x",
        models=models,
        api_key=None,
        rules=c.Rules(stale_after=stale_after),
        outcomes=Outcomes(),
        drain_on_disconnect=False,
        salt=None,
    )
    discovery = SimpleNamespace(snapshot=c.Snapshot(), engine=None)
    made = Backend(wiring, discovery, measurer=None, clock=lambda: clock.now)
    return made, discovery, clock


def seen(limit, at=0.0):
    facts = (WorkerFacts(worker="w", engine="sglang", max_prompt_tokens=limit),)
    return c.Snapshot({"w": c.Seen(facts, at)})


def test_a_new_snapshot_counts_at_once():
    one, discovery, _ = backend()
    assert isinstance(one.capacity_for("m"), c.Unknown)
    for limit in (100, 50, 70):
        discovery.snapshot = seen(limit)
        assert one.capacity_for("m").tokens == limit
        assert one.capacity_for("m") == one.capacity("m")


def test_a_word_is_not_kept_past_its_time():
    one, discovery, clock = backend(stale_after=60.0)
    discovery.snapshot = seen(100)
    clock.now = 60.0
    assert isinstance(one.capacity_for("m"), c.Known)
    clock.now = 60.001
    assert isinstance(one.capacity_for("m"), c.Unknown)


def test_what_a_calibration_keeps_free_is_off_the_limit_at_once():
    one, discovery, _ = backend()
    discovery.snapshot = seen(100)
    assert one.capacity_for("m").tokens == 100
    one.calibrator = SimpleNamespace(margin=lambda limit: limit // 4)
    assert one.capacity_for("m").tokens == one.capacity().tokens == 75
    discovery.snapshot = c.Snapshot()
    assert isinstance(one.capacity_for("m"), c.Unknown)


def test_names_from_requests_do_not_pile_up():
    one, discovery, _ = backend()
    discovery.snapshot = seen(100)
    for number in range(3 * MODELS_REMEMBERED):
        one.capacity_for(f"m{number}")
    assert len(one._worked_out.by_model) <= MODELS_REMEMBERED


def test_another_process_is_learnt_anew_and_the_first_is_no_change():
    one, discovery, _ = backend()
    taught = one.prefill = PrefillModel().learned(100_000, 1.0)
    one.past.echoes.add("openai_chat")
    discovery.snapshot = process("1")
    one.capacity_for("m")
    assert (one.prefill, one.past.echoes) == (taught, {"openai_chat"})
    discovery.snapshot = process("1")  # another round, the same process
    one.capacity_for("m")
    assert one.prefill is taught
    discovery.snapshot = process("2")
    one.capacity_for("m")
    assert (one.prefill, one.past.echoes) == (PrefillModel(), set())


def process(incarnation):
    facts = WorkerFacts("w", "sglang", max_prompt_tokens=100, incarnation=incarnation)
    return c.Snapshot({"w": c.Seen((facts,), 0.0)})
