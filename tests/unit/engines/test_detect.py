"""Detection of anything, and never an exception (row 59)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_data import composed
from gateway.engines import detect
from gateway.engines.base import Answer, Engine, Probe, Router, Unreadable
from gateway.engines.reading import MODELS
from gateway.types import ChatPrompt, TextPrompt, WorkerFacts

PROBES = detect.detection_probes()
CONTRACT_NAMES = {
    "sglang", "vllm", "llama_cpp", "tgi", "ollama", "tensorrt_llm", "lmdeploy", "openai"
}  # fmt: skip


def test_every_engine_of_the_contract_has_an_adapter():
    assert set(detect.NAMES) == CONTRACT_NAMES
    assert all(detect.by_name(name).name == name for name in CONTRACT_NAMES)
    with pytest.raises(ValueError, match="llama_cpp"):
        detect.by_name("nope")


def test_engines_and_routers_are_told_apart_by_their_verbs():
    assert all(isinstance(e, Engine) and not isinstance(e, Router) for e in detect.ENGINES)
    assert all(isinstance(r, Router) and not isinstance(r, Engine) for r in detect.ROUTERS)


def test_each_question_is_put_once_and_every_adapter_has_its_own():
    assert len(set(PROBES)) == len(PROBES)
    for one in (*detect.ENGINES, *detect.ROUTERS):
        assert set(one.probes) <= set(PROBES)
    assert all(probe.method == "GET" for probe in PROBES)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("sglang_pd_prefill", "sglang"),
        ("sglang_old", "sglang"),
        ("mini_lb", "sglang"),
        ("vllm_dp", "vllm"),
        ("vllm_old", "vllm"),
        ("tgi", "tgi"),
        ("tgi_old", "tgi"),
        ("ollama", "ollama"),
        ("tensorrt_llm_idle", "tensorrt_llm"),
        ("lmdeploy", "lmdeploy"),
        ("lmdeploy_plain", "lmdeploy"),
        ("sgl_gateway", "sgl_gateway"),
    ],
)
def test_composed_shapes_are_recognised(file, name):
    assert detect.detect(composed(file)).name == name


def test_the_router_is_found_where_the_operator_named_the_engine():
    assert detect.detect_router(composed("sgl_gateway")).name == "sgl_gateway"
    assert detect.detect_router(composed("vllm_dp")) is None


def test_a_known_engine_that_is_slow_or_loading_is_not_taken_for_an_unknown_one():
    models = composed("vllm_dp")[MODELS]
    late = dict.fromkeys(PROBES, Answer(0, b"TimeoutError"))
    assert detect.detect(late | {MODELS: models}) is None
    loading = dict.fromkeys(PROBES, Answer(503, b"{}"))
    assert detect.detect(loading | {MODELS: models}) is None
    foreign = Answer(200, b'{"data":[{"id":"m","owned_by":"local"}]}')
    assert detect.detect(late | {MODELS: foreign}) is None
    assert detect.detect(loading | {MODELS: foreign}).name == "openai"


GARBAGE = {
    "text": Answer(200, b"not yet implemented"),
    "501": Answer(501, b"not implemented"),
    "html": Answer(200, b"<!doctype html><title>404</title>"),
    "empty object": Answer(200, b"{}"),
    "list": Answer(200, b"[]"),
    "401": Answer(401, b'{"error":"Unauthorized"}'),
    "307": Answer(307, b""),
    "nothing": Answer(0, b"TimeoutError"),
    "null": Answer(200, b"null"),
    "not utf-8": Answer(200, b"\xff\xfe"),
    "deep": Answer(200, b"[" * 100_000),
    "long number": Answer(200, b'{"max_req_input_len":' + b"9" * 5000 + b"}"),
    "10 MB": Answer(200, b'{"a":"' + b"x" * 10_000_000 + b'"}'),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_nobody_and_unreadable_by_everybody(kind):
    answers = dict.fromkeys(PROBES, GARBAGE[kind])
    if kind != "list":  # an empty list is what TensorRT-LLM's idle /metrics answers
        assert detect.detect(answers) is None
    for engine in detect.ENGINES:
        assert isinstance(engine.read("w", answers), Unreadable), engine.name
    for router in detect.ROUTERS:
        assert isinstance(router.workers(answers), Unreadable), router.name


@pytest.mark.parametrize("name", sorted(CONTRACT_NAMES))
def test_no_answers_at_all_are_unreadable(name):
    assert isinstance(detect.by_name(name).read("w", {}), Unreadable)


# Field names the adapters look for, so that random objects get past the first test.
KEYS = st.sampled_from(
    [
        "max_req_input_len", "max_total_num_tokens", "internal_states", "memory_usage",
        "token_capacity", "token_capacity_swa", "disaggregation_mode", "startup_time", "prefill",
        "decode", "version", "data", "id", "owned_by", "max_model_len", "workers", "url",
        "worker_type", "total", "urls", "default_generation_settings", "n_ctx", "models",
        "context_length", "router", "max_input_tokens", "max_total_tokens", "model_id",
        "kvCacheStats", "maxNumBlocks", "tokensPerBlock", "num_gpu_blocks", "block_size", "error",
        "message", "object", "type", "dcp_size", "dp_size", "allow_auto_truncate", "engine_id",
        "scheduler_e2e", "launch_command", "name", "meta_info", "finish_reason", "response",
    ]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 3000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "prefill", "decode", "vllm", "text-generation-router", "http://a@1", "8"]),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=25,
)
METRICS_TEXT = st.text(
    alphabet=st.sampled_from('vllm:cache_config_info{}="\\,\n 0123456789.eE+-#NaNInf'), max_size=80
).map(lambda tail: ("vllm:cache_config_info" + tail).encode())
ANSWER = st.builds(
    Answer,
    st.sampled_from([200, 200, 200, 0, 401, 404, 500]),
    st.one_of(VALUES.map(lambda v: json.dumps(v).encode()), st.binary(max_size=40), METRICS_TEXT),
)


@given(st.dictionaries(st.sampled_from(PROBES), ANSWER))
def test_nothing_a_worker_says_raises(answers):
    found = detect.detect(answers)
    assert found is None or isinstance(found, Engine | Router)
    for router in detect.ROUTERS:
        workers = router.workers(answers)
        assert isinstance(workers, Unreadable) or all(ref.url for ref in workers)
    for engine in detect.ENGINES:
        facts = engine.read("w", answers)
        if isinstance(facts, Unreadable):
            assert facts.reason
            continue
        assert facts
        for fact in facts:
            assert isinstance(fact, WorkerFacts)
            assert type(fact.max_prompt_tokens) is int
            assert fact.max_prompt_tokens >= 1
            assert fact.context_tokens is None or fact.max_prompt_tokens <= fact.context_tokens


@given(st.integers(0, 599), st.one_of(ANSWER.map(lambda a: a.body), METRICS_TEXT))
def test_no_answer_body_raises_and_a_stated_limit_is_a_number(status, body):
    for engine in detect.ENGINES:
        for sent in (body, b"data: " + body + b"\n\n"):
            stated = engine.stated_limit(status, sent)
            assert (
                stated is None or stated.max_prompt_tokens is None or stated.max_prompt_tokens > 0
            )


@given(
    st.sampled_from(["openai_chat", "openai_responses", "anthropic_messages", "other"]),
    st.dictionaries(st.sampled_from(["messages", "input", "tools", "response_format"]), VALUES),
)
def test_no_request_raises_in_an_oracle(dialect, body):
    for engine in detect.ENGINES:
        for prompt in (ChatPrompt(dialect, body), TextPrompt(("a", ""), None)):
            calls = engine.oracle(prompt, "m")
            assert calls is None or all(hash(call.probe) for call in calls)


def test_a_probe_with_a_body_can_be_a_key():
    one, other = Probe("POST", "/t", {"a": 1}), Probe("POST", "/t", {"a": 2})
    assert {one: 1, other: 2}[Probe("POST", "/t", {"a": 2})] == 2
