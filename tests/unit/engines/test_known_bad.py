"""Which versions the deploy gate stops, and which only deserve a word."""

import pytest

from engine_data import composed
from gateway.engines.known_bad import advisories, known_bad
from gateway.engines.sglang import Sglang
from gateway.types import WorkerFacts


def facts(engine, version, **more):
    return WorkerFacts("w", engine, version=version, **more)


@pytest.mark.parametrize(
    ("version", "disaggregated", "bad"),
    [
        ("0.5.19", True, True),
        ("0.5.19.post1", True, True),
        ("0.5.20.dev3+g12ab", True, True),
        ("0.4.3", True, True),
        ("0.5.20", True, False),
        ("0.5.23", True, False),
        ("0.5.19", False, False),
        (None, True, True),
        ("unknown", True, True),
        (None, False, False),
    ],
)
def test_sglang_leaks_before_0_5_20_when_disaggregated(version, disaggregated, bad):
    found = known_bad(facts("sglang", version, disaggregated=disaggregated))
    assert bool(found) is bad
    assert all("#30233" in text for text in found)


def test_the_adapters_facts_are_enough():
    (worker,) = Sglang().read("w", composed("sglang_pd_prefill"))
    (text,) = known_bad(worker)
    assert "#36988" in text


@pytest.mark.parametrize(
    ("version", "bad"), [("0.7.1", True), ("0.7.2", False), ("0.32.0", False), (None, False)]
)
def test_vllms_predictable_hashes(version, bad):
    assert bool(known_bad(facts("vllm", version))) is bad


@pytest.mark.parametrize(("version", "said"), [("0.29.0", True), ("0.30.0", False)])
def test_vllms_salt_fault_depends_on_a_connector(version, said):
    assert known_bad(facts("vllm", version)) == ()
    assert any("CVE-2026-105756" in text for text in advisories(facts("vllm", version))) is said


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("b9747-aa", False),
        ("b9748-aa", True),
        ("b10241", True),
        ("b0-unknown", False),
        (None, False),
    ],
)
def test_llama_cpps_open_reports_are_advisories(build, said):
    worker = facts("llama_cpp", build)
    assert known_bad(worker) == ()
    assert any("#27422" in text for text in advisories(worker)) is said
    assert any("--cache-ram 0" in text for text in advisories(worker))


@pytest.mark.parametrize("engine", ["tgi", "ollama", "openai", "lmdeploy", "tensorrt_llm"])
def test_nothing_is_known_of_the_others(engine):
    assert known_bad(facts(engine, "0.0.1", disaggregated=True)) == ()
