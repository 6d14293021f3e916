"""The adapters against what real engines answered when run (data/captures)."""

import json

import pytest

from engine_data import captured, captures, refusals
from gateway.engines import detect
from gateway.engines.base import StatedLimit, Unreadable, WorkerRef
from gateway.types import ChatPrompt, Role, TextPrompt

WORKER = "http://10.0.0.1:30000"
RECORDED = {
    "sglang": ("server_info", "models", "version"),
    "vllm": ("models", "version", "metrics", "server_info"),
    "llamacpp": ("props", "slots", "models", "version", "server_info"),
    "llamacpp-ctxshift": ("props", "models"),
    "transformers-serve": ("models", "version", "metrics", "health"),
}


def facts_of(engine):
    answers = captures(engine, *RECORDED[engine])
    found = detect.detect(answers).read(WORKER, answers)
    assert isinstance(found, tuple), found
    (facts,) = found
    return facts


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("sglang", "sglang"),
        ("vllm", "vllm"),
        ("llamacpp", "llama_cpp"),
        ("llamacpp-ctxshift", "llama_cpp"),
        ("transformers-serve", "openai"),
    ],
)
def test_detection_names_the_engine_that_ran(recorded, name):
    assert detect.detect(captures(recorded, *RECORDED[recorded])).name == name


def test_sglang_admits_one_less_than_its_stated_input_length():
    facts = facts_of("sglang")
    assert facts.max_prompt_tokens == 1017  # seen: 1017 answered, 1018 refused
    assert (facts.pool_tokens, facts.context_tokens) == (4096, 1024)
    assert (facts.version, facts.models, facts.role) == ("0.5.23", ("tiny",), Role.REGULAR)
    assert (facts.disaggregated, facts.kv_checksum, facts.truncates) == (False, False, None)


@pytest.mark.parametrize(
    ("role", "limit", "pool"), [(Role.PREFILL, 249, 256), (Role.DECODE, 1017, 2048)]
)
def test_prefill_and_decode_workers_tell_their_own_limits(role, limit, pool):
    """Of the SGLang that had the incident: 250 to 1016 tokens leaked (docs/reproduction.md)."""
    answers = captures("sglang-pd", f"{role}_server_info", f"{role}_models")
    (facts,) = detect.detect(answers).read(WORKER, answers)
    assert (facts.max_prompt_tokens, facts.pool_tokens, facts.context_tokens) == (limit, pool, 1024)
    assert (facts.role, facts.version) == (role, "0.5.19")
    assert (facts.disaggregated, facts.kv_checksum, facts.truncates) == (
        True,
        None,
        None,
    )  # no such flag yet


def test_sglang_router_tells_both():
    answers = captures("sglang-pd", "router_workers", "router_server_info", "router_models")
    assert detect.detect_router(answers).workers(answers) == (
        WorkerRef("http://10.0.0.2:30000", Role.DECODE),
        WorkerRef("http://10.0.0.1:30000", Role.PREFILL),
    )


def test_vllm_admits_one_less_than_its_context():
    facts = facts_of("vllm")
    assert facts.max_prompt_tokens == 1023  # seen: 1023 answered, 1024 refused
    assert (facts.pool_tokens, facts.context_tokens) == (2097152, 1024)
    assert (facts.version, facts.models) == ("0.32.0", ("tiny",))


@pytest.mark.parametrize(("recorded", "window"), [("llamacpp", 512), ("llamacpp-ctxshift", 1024)])
def test_llama_cpp_admits_one_less_than_a_slots_window(recorded, window):
    facts = facts_of(recorded)
    assert facts.max_prompt_tokens == window - 1
    assert facts.context_tokens == window  # not n_ctx_train, 131072
    assert facts.models == ("tiny",)


def test_a_server_without_limits_says_which_setting_it_needs():
    answers = captures("transformers-serve", *RECORDED["transformers-serve"])
    found = detect.detect(answers).read(WORKER, answers)
    assert isinstance(found, Unreadable)
    assert "limit.max_prompt_tokens" in found.reason


def test_two_processes_of_one_engine_have_two_incarnations():
    assert facts_of("llamacpp").incarnation != facts_of("llamacpp-ctxshift").incarnation
    assert facts_of("sglang").incarnation == facts_of("sglang").incarnation


def test_vllm_is_known_by_its_metrics_where_its_key_is_missing():
    answers = captures("vllm-dev-apikey", "noauth_models", "noauth_metrics")
    answers |= captures("vllm", "version")
    engine = detect.detect(answers)
    assert engine.name == "vllm"
    found = engine.read(WORKER, answers)
    assert isinstance(found, Unreadable)
    assert "401" in found.reason
    assert "api_key" in found.reason


def test_llama_cpp_that_refuses_the_key_is_not_taken_for_anything():
    assert detect.detect(captures("llamacpp-ctxshift", "noauth_models", "noauth_metrics")) is None


SGLANG_TOO_LONG = (
    "chat_too_long", "chat_too_long_stream", "completions_too_long", "messages_too_long",
    "responses_too_long", "generate_too_long",
)  # fmt: skip
VLLM_TOO_LONG = (
    "chat_too_long", "chat_too_long_stream", "completions_too_long", "messages_too_long",
    "responses_too_long",
)  # fmt: skip
REFUSALS = [
    *(("sglang", "sglang", name, 1023) for name in SGLANG_TOO_LONG),  # the context's word
    ("sglang", "sglang", "generate_len1018", 1017),  # the scheduler's word
    *(("vllm", "vllm", name, 1023) for name in VLLM_TOO_LONG),
    ("vllm", "vllm", "chat_exact_len_1024", None),  # no number, and the same for max_tokens 0
    *(("llamacpp", "llama_cpp", name, 511) for name in VLLM_TOO_LONG),
    ("llamacpp-ctxshift", "llama_cpp", "too_long", 1023),
]


@pytest.mark.parametrize(("recorded", "name", "exchange", "longest"), REFUSALS)
def test_a_refusal_states_the_longest_prompt_it_would_have_taken(recorded, name, exchange, longest):
    _, answer = captured(recorded, exchange)
    stated = detect.by_name(name).stated_limit(answer.status, answer.body)
    assert stated == StatedLimit(longest)


@pytest.mark.parametrize(
    ("recorded", "name", "exchange"),
    [
        ("sglang", "sglang", "chat"),
        ("sglang", "sglang", "chat_stream"),
        ("sglang", "sglang", "chat_prompt_plus_max_too_long"),
        ("sglang", "sglang", "chat_max_tokens_huge"),
        ("vllm", "vllm", "chat"),
        ("vllm", "vllm", "chat_stream"),
        ("vllm", "vllm", "chat_max_tokens_huge"),
        ("llamacpp", "llama_cpp", "chat"),
        ("llamacpp", "llama_cpp", "chat_stream"),
    ],
)
def test_other_answers_state_no_limit(recorded, name, exchange):
    _, answer = captured(recorded, exchange)
    assert detect.by_name(name).stated_limit(answer.status, answer.body) is None


# What each recorded refusal says, and what is to be read in it: the prompt was too long and the
# longest that is not, too long by an unknown number, or nothing of the prompt's length.
SAYS = {
    "vllm": {
        "This model's maximum context length is 1024 tokens. However, your": StatedLimit(1023),
        "The engine prompt length 1024 exceeds the max_model_len 1024": StatedLimit(1023),
        "max_tokens must be at least 1, got 0.": StatedLimit(None),
    },
    "llama_cpp": {"exceeds the available context size (1024 tokens)": StatedLimit(1023)},
    "sglang": {
        "is longer than the model's context length (1024 tokens)": StatedLimit(1023),
        "exceeds the maximum allowed length (1018 tokens)": StatedLimit(1017),
        "Requested token count exceeds": None,
        "max_new_tokens must be at least 0, got -1.": None,
    },
}


@pytest.mark.parametrize("name", SAYS)
def test_refusals_around_the_limit(name):
    """At L-1, L, L+1 and L+64 on each endpoint, whole and streamed, whatever maximum was asked."""
    engine = detect.by_name(name)
    unseen = set(SAYS[name])
    for seen in refusals(name):
        case = {key: seen[key] for key in seen if key != "body"}
        text = seen["body"] or ""
        stated = engine.stated_limit(seen["status"], text.encode())
        words = [each for each in SAYS[name] if each in text]
        assert len(words) == (seen["body"] is not None), case
        assert stated == (SAYS[name][words[0]] if words else None), case
        assert stated is None or seen["offset"] > 0, case
        unseen -= set(words)
    assert not unseen


HELLO = [{"role": "user", "content": "Hello world, how are you?"}]
CHAT = ChatPrompt("openai_chat", {"model": "m", "messages": HELLO, "max_tokens": 8})
ANTHROPIC = ChatPrompt("anthropic_messages", {"model": "m", "messages": HELLO, "max_tokens": 8})
TEXT = TextPrompt(("Hello <|im_end|> world",))


@pytest.mark.parametrize(
    ("recorded", "name", "exchange", "prompt", "count"),
    [
        ("sglang", "sglang", "tokenize_chat", CHAT, 15),
        ("sglang", "sglang", "tokenize_prompt", TEXT, 4),
        ("sglang", "sglang", "messages_count", ANTHROPIC, 15),
        ("vllm", "vllm", "tokenize_chat", CHAT, 15),
        ("vllm", "vllm", "tokenize_prompt", TEXT, 4),
        ("vllm", "vllm", "messages_count", ANTHROPIC, 15),
        ("llamacpp", "llama_cpp", "count_tokens_openai", CHAT, 15),
        ("llamacpp", "llama_cpp", "count_tokens_anthropic", ANTHROPIC, 15),
        ("llamacpp", "llama_cpp", "tokenize", TEXT, 4),
    ],
)
def test_the_oracle_asks_the_recorded_endpoint_and_reads_its_count(
    recorded, name, exchange, prompt, count
):
    probe, answer = captured(recorded, exchange)
    (call,) = detect.by_name(name).oracle(prompt, "tiny")
    assert (call.probe.method, call.probe.path) == (probe.method, probe.path)
    assert call.count(answer) == count


def test_llama_cpp_counts_responses_requests_too():
    probe, answer = captured("llamacpp", "count_tokens_resp")
    prompt = ChatPrompt("openai_responses", {"input": "hello there"})
    (call,) = detect.by_name("llama_cpp").oracle(prompt, "tiny")
    assert call.probe.path == probe.path
    assert call.probe.body == {"model": "tiny", "input": "hello there"}
    assert call.count(answer) == 10


def test_vllm_renders_chats_whose_fields_tokenize_lacks_and_gets_no_count_where_it_may_not():
    prompt = ChatPrompt("openai_chat", {"messages": HELLO, "reasoning_effort": "low"})
    (call,) = detect.by_name("vllm").oracle(prompt, "tiny")
    probe, rendered = captured("vllm-dev-apikey", "render_chat")
    assert call.probe.path == probe.path
    assert call.count(rendered) == 15
    _, disabled = captured("vllm", "render_chat")
    assert call.count(disabled) is None


def test_no_part_of_a_launch_command_shows_in_the_facts():
    answers = captures("sglang", *RECORDED["sglang"])
    (info,) = (json.loads(a.body) for p, a in answers.items() if p.path == "/server_info")
    assert info["launch_command"]
    assert "launch_server" not in repr(facts_of("sglang"))
    assert info["launch_command"][:20] not in repr(facts_of("sglang"))
