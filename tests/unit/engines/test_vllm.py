"""vLLM beyond what was recorded: several DP engines, old versions, its wordings (row 55)."""

import json

import pytest

from engine_data import answered, composed
from gateway.engines.base import Answer, StatedLimit, Unreadable
from gateway.engines.reading import METRICS, VERSION
from gateway.engines.vllm import Vllm
from gateway.types import ChatPrompt, TextPrompt

VLLM = Vllm()
W = "http://10.0.0.1:8000"


def one(answers):
    assert VLLM.recognises(answers)
    (facts,) = VLLM.read(W, answers)
    return facts


def test_the_smallest_dp_engine_tells_the_pool():
    facts = one(composed("vllm_dp"))
    assert (facts.max_prompt_tokens, facts.pool_tokens) == (32767, 400000)
    assert facts.notes == ()


def test_blocks_of_an_old_version_are_a_note_and_no_pool():
    facts = one(composed("vllm_old"))
    assert facts.pool_tokens is None
    assert facts.max_prompt_tokens == 32767
    assert "27840 blocks of 16" in facts.notes[0]


def pool_of(text):
    line = f'vllm:cache_config_info{{kv_cache_size_tokens="{text}"}} 1.0\n'
    return composed("vllm_dp") | {METRICS: Answer(200, line.encode())}


def test_a_pool_below_the_context_overrules_it_row_55():
    facts = one(pool_of("27121"))
    assert facts.max_prompt_tokens == 27120
    assert facts.context_tokens == 32768
    assert "27121" in facts.notes[0]


@pytest.mark.parametrize("text", ["None", "-5", "1e9", "", "0", "１２", "9" * 40])
def test_a_pool_that_is_no_number_is_no_pool(text):
    assert one(pool_of(text)).pool_tokens is None


@pytest.mark.parametrize("length", [None, "32768", True, -1, 1.0, 10**30, [32768], 1])
def test_without_a_credible_context_there_is_no_limit(length):
    cards = {"data": [{"id": "q", "owned_by": "vllm", "max_model_len": length}]}
    answers = composed("vllm_dp") | answered(v1__models=cards)
    assert VLLM.recognises(answers)
    assert isinstance(VLLM.read(W, answers), Unreadable)


def test_adapters_without_a_length_do_not_hide_the_base_models():
    cards = {"data": [{"id": "q", "max_model_len": 100}, {"id": "lora", "max_model_len": None}]}
    facts = one(composed("vllm_dp") | answered(v1__models=cards))
    assert (facts.max_prompt_tokens, facts.models) == (99, ("q", "lora"))


def test_a_restart_is_another_incarnation():
    later = composed("vllm_dp")
    page = later[METRICS].body.replace(b"1.7960137729e+09", b"1.7960999999e+09")
    assert page != later[METRICS].body
    before = one(composed("vllm_dp")).incarnation
    assert before != one(later | {METRICS: Answer(200, page)}).incarnation
    assert before != one(later | answered(version={"version": "0.34.0"})).incarnation


def test_a_version_alone_is_not_vllm():
    assert not VLLM.recognises({VERSION: composed("vllm_dp")[VERSION]})


LONG = "This model's maximum context length is 27120 tokens. However, "


@pytest.mark.parametrize(
    ("message", "longest"),
    [
        (LONG + "your prompt contains at least 27121 input tokens, which exceeds", 27119),
        (LONG + "your prompt contains 900000 characters (more than 433920 characters", 27119),
        (LONG + "your messages resulted in 30000 tokens. Please reduce", 27119),
        (LONG + "your request has 30000 input tokens.", 27119),
        (LONG + "you requested 30010 tokens (30000 in the messages, 10 in the completion)", 27119),
        (LONG + "you requested 27130 tokens (15 in the messages, 27115 in the completion)", None),
        ("The decoder prompt (length 9) is longer than the maximum model length of 8.", 7),
        ("The engine prompt length 9 exceeds the max_model_len 8. Please reduce prompt.", 7),
        ("1 validation error: " + LONG + "your prompt contains at least 2 input", None),
        ("max_tokens=100000 cannot be greater than max_model_len=1024.", None),
        ("max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)", None),
    ],
)
def test_what_each_wording_states(message, longest):
    flat = {"object": "error", "message": message, "code": 400}
    nested = {"error": {"message": message, "code": 400}}
    expected = None if longest is None else StatedLimit(longest)
    for body in (flat, nested):
        assert VLLM.stated_limit(400, json.dumps(body).encode()) == expected


def test_a_limit_in_generated_text_is_not_believed():
    said = LONG + "your prompt contains at least 2 input tokens"
    answer = {"choices": [{"message": {"content": said}}], "error": None}
    assert VLLM.stated_limit(200, json.dumps(answer).encode()) is None
    chunk = json.dumps({"choices": [{"delta": {"content": 'data: {"error":' + said}}]})
    assert VLLM.stated_limit(200, f"data: {chunk}\n\n".encode()) is None


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({}, "/tokenize"),
        ({"tools": [], "chat_template_kwargs": {"enable_thinking": False}}, "/tokenize"),
        ({"response_format": {"type": "text"}}, "/tokenize"),
        ({"reasoning_effort": "low"}, "/v1/chat/completions/render"),
        ({"tool_choice": "none"}, "/v1/chat/completions/render"),
        ({"documents": [{}]}, "/v1/chat/completions/render"),
        ({"response_format": {"type": "json_object"}}, "/v1/chat/completions/render"),
    ],
)
def test_which_endpoint_counts_a_chat(extra, path):
    body = {"messages": MESSAGES, "model": "alias", "stream": True, "seed": 1, **extra}
    (call,) = VLLM.oracle(ChatPrompt("openai_chat", body), "tiny")
    assert call.probe.path == path
    assert call.probe.body["model"] == "tiny"
    assert "stream" not in call.probe.body
    assert extra.items() <= {**call.probe.body, **({} if "render" in path else extra)}.items()


def test_texts_are_asked_one_by_one_and_specials_are_vllms_default():
    calls = VLLM.oracle(TextPrompt(("a", "b")), "m")
    assert [call.probe.body["prompt"] for call in calls] == ["a", "b"]
    assert calls[0].probe.body["add_special_tokens"] is True
    assert VLLM.oracle(ChatPrompt("openai_responses", {"input": "x"}), "m") is None
