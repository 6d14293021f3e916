"""llama.cpp, TGI, Ollama, TensorRT-LLM and LMDeploy, mostly from composed answers."""

import json

import pytest

from engine_data import answered, captures, composed
from gateway.engines import detect
from gateway.engines.base import Answer, Probe, StatedLimit, Unreadable
from gateway.engines.reading import METRICS
from gateway.types import ChatPrompt, TextPrompt

W = "http://10.0.0.1:8000"
IMAGE = [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]


def read(name, answers):
    engine = detect.detect(answers)
    assert engine.name == name
    return engine.read(W, answers)


def stated(name, status, body):
    return detect.by_name(name).stated_limit(status, json.dumps(body).encode())


# --- llama.cpp --------------------------------------------------------------------------------


def test_the_smallest_slot_decides():
    answers = captures("llamacpp", "props", "models")
    slots = answered(slots=[{"id": 0, "n_ctx": 512}, {"id": 1, "n_ctx": 256}, None, {"n_ctx": "x"}])
    (facts,) = read("llama_cpp", answers | slots)
    assert facts.max_prompt_tokens == 255


@pytest.mark.parametrize("window", [None, 0, -1, "512", True, 1, 10**20])
def test_a_server_without_a_window_is_unreadable(window):
    props = {"default_generation_settings": {"n_ctx": window}, "total_slots": 1}
    assert isinstance(read("llama_cpp", answered(props=props)), Unreadable)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"type": "exceed_context_size_error", "n_ctx": 8192}, StatedLimit(8191)),
        ({"type": "exceed_context_size_error", "n_ctx": "8192"}, StatedLimit(None)),
        (
            {"message": "request (9412 tokens) exceeds the available context size (8192 tokens)"},
            StatedLimit(8191),
        ),
        (
            {"message": "the request exceeds the available context size. try increasing it"},
            StatedLimit(None),
        ),
        (
            {"message": "input (900 tokens) is too large to process. increase the physical batch"},
            StatedLimit(None),  # a batch size of embeddings, not the prompt limit
        ),
        ({"message": "Loading model", "type": "unavailable_error"}, None),
    ],
)
def test_llama_cpps_refusals(error, expected):
    assert stated("llama_cpp", 400, {"error": error}) == expected


def test_llama_cpp_reports_usage_of_the_first_choice_only_and_cannot_salt():
    traits = detect.by_name("llama_cpp").traits
    assert traits.usage_first_only
    assert not traits.salt_fields


# --- TGI --------------------------------------------------------------------------------------


def test_tgi_accepts_its_limit_itself():
    (facts,) = read("tgi", composed("tgi"))
    assert (facts.max_prompt_tokens, facts.context_tokens) == (32767, 32768)
    assert (facts.pool_tokens, facts.version) == (131072, "3.3.6")


def test_tgi_of_old():
    (facts,) = read("tgi", composed("tgi_old"))
    assert (facts.max_prompt_tokens, facts.pool_tokens) == (1000, 16000)


def test_tgi_with_a_pool_below_its_limit():
    gauge = {METRICS: Answer(200, b"tgi_batch_max_total_tokens 1000\n")}
    (facts,) = read("tgi", composed("tgi") | gauge)
    assert facts.max_prompt_tokens == 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`inputs` must have less than 32767 tokens. Given: 40000", StatedLimit(32767)),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 32768. Given: 40000 `inputs` tokens "
            "and 1 `max_new_tokens`",
            StatedLimit(32767),
        ),
        (
            "`inputs` tokens + `max_new_tokens` must be <= 32768. Given: 5 `inputs` tokens and "
            "40000 `max_new_tokens`",
            None,
        ),
        ("`temperature` must be strictly positive", None),
    ],
)
def test_tgis_refusals(text, expected):
    body = {"error": f"Input validation error: {text}", "error_type": "validation"}
    assert stated("tgi", 422, body) == expected


def test_tgis_oracles():
    tgi = detect.by_name("tgi")
    first, second = tgi.oracle(TextPrompt(("a", "b")), "m")
    assert (first.probe.path, first.probe.body) == ("/tokenize", {"inputs": "a"})
    assert second.count(Answer(200, b'[{"id":1,"text":"b","start":0,"stop":1},{"id":2}]')) == 2
    (chat,) = tgi.oracle(ChatPrompt("openai_chat", {"messages": [], "stream": True}), "m")
    assert chat.probe.path == "/chat_tokenize"
    assert chat.count(Answer(200, b'{"tokenize_response":[{},{},{}],"templated_text":""}')) == 3
    assert tgi.oracle(ChatPrompt("openai_chat", {"messages": IMAGE}), "m") is None
    assert tgi.oracle(TextPrompt(("a",), add_special_tokens=False), "m") is None


# --- Ollama -----------------------------------------------------------------------------------


def test_ollama_has_a_limit_a_model_and_truncates():
    small, large = read("ollama", composed("ollama"))
    assert (small.max_prompt_tokens, small.models) == (4095, ("llama3.2:latest", "llama3.2"))
    assert (large.max_prompt_tokens, large.models) == (32767, ("qwen3:8b",))
    assert small.truncates
    assert large.truncates
    assert small.pool_tokens is None


@pytest.mark.parametrize(
    "models", [[], [None], [{"name": "x"}], [{"name": "x", "context_length": "4096"}]]
)
def test_ollama_without_a_window_is_unreadable(models):
    assert isinstance(read("ollama", answered(api__ps={"models": models})), Unreadable)


def test_ollamas_refusals():
    text = "the prompt is longer than the context length currently available to the model; x"
    assert stated("ollama", 400, {"error": text}) == StatedLimit(None)
    assert stated("ollama", 400, {"error": {"message": text}}) == StatedLimit(None)
    assert stated("ollama", 404, {"error": "model 'x' not found"}) is None


# --- TensorRT-LLM -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "blocks", "size"),
    [("tensorrt_llm_metrics", 101256, 32), ("tensorrt_llm_info", 1000, 64)],
)
def test_tensorrt_llms_pool(file, blocks, size):
    (facts,) = read("tensorrt_llm", composed(file))
    assert facts.pool_tokens == blocks * size
    assert facts.max_prompt_tokens == (blocks - 1) * size
    assert facts.context_tokens is None


def test_tensorrt_llms_gauges():
    page = b"trtllm_kv_cache_max_blocks 500\ntrtllm_kv_cache_tokens_per_block 32\n"
    gauges = {Probe("GET", "/prometheus/metrics"): Answer(200, page)}
    (facts,) = read("tensorrt_llm", composed("tensorrt_llm_idle") | gauges)
    assert facts.pool_tokens == 16000


def test_an_idle_tensorrt_llm_says_what_to_set():
    found = read("tensorrt_llm", composed("tensorrt_llm_idle"))
    assert "limit.max_prompt_tokens" in found.reason


def test_tensorrt_llms_refusals():
    summed = (
        "The sum of prompt length (72417.0), query length (0) should not exceed "
        "max_num_tokens (69632)"
    )
    assert stated("tensorrt_llm", 400, {"error": summed}) == StatedLimit(69632)
    deduced = "`default_max_tokens` (-93) must be greater than 0, `default_max_tokens` (-93) ="
    assert stated("tensorrt_llm", 400, {"error": deduced}) == StatedLimit(None)


# --- LMDeploy ---------------------------------------------------------------------------------


def test_lmdeploys_pool_is_json_inside_json():
    (facts,) = read("lmdeploy", composed("lmdeploy"))
    assert facts.pool_tokens == 128000
    assert facts.max_prompt_tokens == 1998 * 64 - 1


def test_lmdeploy_without_its_disaggregation_endpoint_says_what_to_set():
    found = read("lmdeploy", composed("lmdeploy_plain"))
    assert "limit.max_prompt_tokens" in found.reason


def test_lmdeploy_with_a_tiny_pool_is_unreadable():
    info = json.dumps({"block_size": 64, "num_gpu_blocks": 2})
    assert isinstance(read("lmdeploy", answered(distserve__engine_info=info)), Unreadable)


def test_lmdeploys_refusal_and_oracle():
    body = {"object": "error", "message": "The request exceeds the model context length."}
    assert stated("lmdeploy", 400, body) == StatedLimit(None)
    (call,) = detect.by_name("lmdeploy").oracle(TextPrompt(("a",), add_special_tokens=False), "m")
    assert call.probe.body == {"input": "a", "do_preprocess": False, "add_bos": False}
    assert call.count(Answer(200, b'{"input_ids":[1,2],"length":2}')) == 2
    assert detect.by_name("lmdeploy").oracle(ChatPrompt("openai_chat", {}), "m") is None


@pytest.mark.parametrize("name", ["ollama", "tensorrt_llm", "openai"])
def test_engines_without_a_tokenise_endpoint(name):
    engine = detect.by_name(name)
    assert engine.oracle(TextPrompt(("a",)), "m") is None
    assert engine.oracle(ChatPrompt("openai_chat", {"messages": []}), "m") is None
