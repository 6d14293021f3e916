"""SGLang's limits beyond what was recorded: disaggregation, data parallel ranks, traps (row 56)."""

import json

import pytest

from engine_data import answered, composed
from gateway.engines.base import Answer, Probe, StatedLimit, Unreadable
from gateway.engines.reading import SERVER_INFO
from gateway.engines.sglang import Sglang
from gateway.types import ChatPrompt, Role, TextPrompt

SGLANG = Sglang()
W = "http://10.0.0.1:30000"


def read(answers):
    assert SGLANG.recognises(answers)
    return SGLANG.read(W, answers)


def one(answers):
    (facts,) = read(answers)
    return facts


def info(**changes):
    base = json.loads(composed("sglang_pd_prefill")[SERVER_INFO].body)
    return answered(server_info={**base, **changes})


@pytest.mark.parametrize(
    ("file", "role", "limit", "checksum"),
    [
        ("sglang_pd_prefill", Role.PREFILL, 284921, False),
        ("sglang_pd_decode", Role.DECODE, 681273, True),
    ],
)
def test_a_disaggregated_worker_tells_its_own_limit_and_role(file, role, limit, checksum):
    facts = one(composed(file))
    assert (facts.role, facts.max_prompt_tokens) == (role, limit)
    assert facts.disaggregated
    assert facts.kv_checksum is checksum
    assert facts.context_tokens == 1048576


def test_a_rank_with_a_smaller_pool_has_the_smaller_limit():
    first, second = read(composed("sglang_dp_unequal"))
    assert (first.worker, second.worker) == (f"{W}@0", f"{W}@1")
    assert (first.max_prompt_tokens, second.max_prompt_tokens) == (284921, 249993)
    assert (first.pool_tokens, second.pool_tokens) == (284928, 250000)
    assert any("250000" in note for note in second.notes)


def test_equal_ranks_are_one_entry():
    state = {"memory_usage": {"token_capacity": 284928}}
    facts = one(info(internal_states=[state, state], dp_size=2))
    assert (facts.worker, facts.max_prompt_tokens) == (W, 284921)


def test_ranks_that_are_not_shown_are_said_to_be_missing():
    assert any("1 of 8" in note for note in one(info(dp_size=8)).notes)


def test_a_sharded_pool_is_not_compared_with_the_limit():
    facts = one(composed("sglang_dcp"))
    assert (facts.max_prompt_tokens, facts.pool_tokens) == (199993, 100000)
    assert any("does not compare" in note for note in facts.notes)


def test_the_smaller_rank_of_a_sharded_pool_gets_its_share_of_the_limit():
    states = [{"memory_usage": {"token_capacity": pool}} for pool in (100000, 50000)]
    first, second = read(info(internal_states=states, dcp_size=2, max_req_input_len=199994))
    assert first.max_prompt_tokens == 199993
    assert second.max_prompt_tokens == 199993 // 2 - 7


def test_a_pool_below_the_stated_limit_overrules_it():
    state = {"memory_usage": {"token_capacity": 1000}}
    assert one(info(internal_states=[state])).max_prompt_tokens == 993


def test_old_builds_state_no_limit_so_it_is_computed_from_the_pool():
    facts = one(composed("sglang_old"))
    assert facts.max_prompt_tokens == 59869 - 7
    assert facts.role is Role.REGULAR
    assert facts.kv_checksum is None


def test_without_a_limit_and_a_pool_nothing_is_guessed():
    found = read(answered(server_info={"max_total_num_tokens": None}, v1__models={"data": []}))
    assert isinstance(found, Unreadable)


@pytest.mark.parametrize("bad", ["59862", True, -1, 0, 1, 1.5, [], {}, 2**41, 10**30])
def test_a_stated_limit_that_is_no_number_is_not_replaced_by_a_guess(bad):
    assert isinstance(read(info(max_req_input_len=bad)), Unreadable)


def test_auto_truncation_is_told_row_56():
    facts = one(composed("sglang_auto_truncate"))
    assert facts.truncates == "allow_auto_truncate"
    assert facts.max_prompt_tokens == 59861


@pytest.mark.parametrize("odd", ["true", 1, []])
def test_an_unclear_truncation_flag_counts_as_set(odd):
    assert one(info(allow_auto_truncate=odd)).truncates


def test_the_context_bounds_the_limit_too():
    answers = info() | answered(v1__models={"data": [{"id": "a", "max_model_len": 4096}]})
    assert one(answers).max_prompt_tokens == 4095
    assert one(answers).models == ("a",)


def test_the_schedulers_role_overrules_the_one_started_with():
    states = [
        {"disaggregation_mode": "decode", "memory_usage": {"token_capacity": 284928}},
    ]
    assert one(info(internal_states=states)).role is Role.DECODE


@pytest.mark.parametrize(
    "change",
    [
        {"version": "0.5.21"},
        {"launch_command": "sglang serve --other"},
        {"random_seed": 5},
        {"startup_time": {"scheduler_e2e": 9.0}},
        {"max_req_input_len": 1000},
        {"disaggregation_mode": "decode", "internal_states": []},
    ],
)
def test_a_restart_or_a_change_of_configuration_is_another_incarnation(change):
    assert one(info()).incarnation != one(info(**change)).incarnation


def test_mini_lb_shows_every_worker_in_one_answer():
    prefill, decode, other = read(composed("mini_lb"))
    assert [f.role for f in (prefill, decode, other)] == [Role.PREFILL, Role.DECODE, Role.DECODE]
    assert [f.max_prompt_tokens for f in (prefill, decode, other)] == [284921, 681273, 299993]
    assert prefill.worker == f"{W}#prefill-0"
    assert all(f.disaggregated for f in (prefill, decode, other))


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [([], []), (None, None), ([None], [None]), ([{"max_req_input_len": 5}], []), ("x", "y")],
)
def test_mini_lb_with_a_worker_missing_is_unreadable(prefill, decode):
    found = read(answered(server_info={"prefill": prefill, "decode": decode}))
    assert isinstance(found, Unreadable)


def test_mini_lb_with_one_bad_worker_is_unreadable_and_names_it():
    good = {"max_req_input_len": 100, "max_total_num_tokens": 106}
    bad = {"max_req_input_len": "100"}
    found = read(answered(server_info={"prefill": [good], "decode": [good, bad]}))
    assert isinstance(found, Unreadable)
    assert "decode-1" in found.reason


def test_the_schedulers_refusal_arrives_inside_an_open_stream():
    text = (
        "Input length (300010 tokens) exceeds the maximum allowed length (284922 tokens). "
        "Use a shorter input or enable --allow-auto-truncate."
    )
    error = {"error": {"object": "error", "message": text, "type": "BAD_REQUEST", "code": 400}}
    stream = b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n"
    assert SGLANG.stated_limit(200, stream) == StatedLimit(284921)
    native = {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": text}}}
    assert SGLANG.stated_limit(200, json.dumps(native).encode()) == StatedLimit(284921)
    assert SGLANG.stated_limit(200, json.dumps([native]).encode()) == StatedLimit(284921)


def test_total_length_counts_as_a_refusal_only_where_the_prompt_alone_is_too_long():
    message = (
        "Requested token count exceeds the model's maximum context length of 1024 tokens. You "
        "requested a total of {} tokens: {} tokens from the input messages and 20 tokens for the "
        "completion."
    )

    def stated(prompt):
        body = {"object": "error", "message": message.format(prompt + 20, prompt)}
        return SGLANG.stated_limit(400, json.dumps(body).encode())

    assert stated(1023) is None
    assert stated(1024) == StatedLimit(1023)


MESSAGES = [{"role": "user", "content": "hi"}]


def test_the_oracle_passes_on_what_reaches_the_template():
    body = {"messages": MESSAGES, "tools": [{"x": 1}], "temperature": 1, "model": "alias"}
    (call,) = SGLANG.oracle(ChatPrompt("openai_chat", body), "tiny")
    assert call.probe.body == {"model": "tiny", "messages": MESSAGES, "tools": [{"x": 1}]}


@pytest.mark.parametrize(
    "extra",
    [
        {"input_ids": [1]},
        {"thinking": True},
        {"response_format": {"type": "json_schema"}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    ],
)
def test_the_oracle_is_not_asked_what_it_would_undercount(extra):
    assert SGLANG.oracle(ChatPrompt("openai_chat", {"messages": MESSAGES, **extra}), "m") is None


def test_there_is_no_oracle_for_responses_and_one_call_a_text():
    assert SGLANG.oracle(ChatPrompt("openai_responses", {"input": "x"}), "m") is None
    calls = SGLANG.oracle(TextPrompt(("a", "b"), add_special_tokens=False), "m")
    assert [c.probe.body["prompt"] for c in calls] == ["a", "b"]
    assert all(c.probe.body["add_special_tokens"] is False for c in calls)


def test_vllms_developer_server_info_is_not_sglangs():
    answers = {Probe("GET", "/server_info"): Answer(200, b'{"vllm_config": {}, "vllm_env": {}}')}
    assert not SGLANG.recognises(answers)


def test_anthropic_requests_have_no_salt_field():
    assert "anthropic_messages" not in SGLANG.traits.salt_fields
    assert SGLANG.traits.salt_fields["sglang_generate"] == "cache_salt"
