"""Fields that reach other requests' state."""

import pytest

from gateway.dialects import isolation
from gateway.errors import Kind, Rejection


@pytest.mark.parametrize("name", sorted(isolation.REFUSED))
@pytest.mark.parametrize("value", [{"do_remote_prefill": True}, "x", 0, False, [], ""])
def test_a_value_is_refused_by_name(name, value):
    with pytest.raises(Rejection) as caught:
        isolation.isolation_edits({"model": "m", name: value})
    assert caught.value.kind is Kind.MALFORMED
    assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(isolation.REFUSED))
def test_null_is_dropped(name):
    assert isolation.isolation_edits({"model": "m", name: None}) == {name: None}


@pytest.mark.parametrize("name", ["rid", "request_id", "cache_salt", "extra_key", "priority"])
@pytest.mark.parametrize("value", [None, "theirs", ["a", "b"], 7])
def test_ids_salts_and_priorities_are_dropped(name, value):
    assert isolation.isolation_edits({"model": "m", name: value}) == {name: None}


def test_fields_of_the_engines_research_are_all_covered():
    listed = [
        "kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank",
        "disaggregated_params", "session_params", "session_id", "rid", "request_id",
        "custom_logit_processor", "return_hidden_states", "lora_path", "id_slot", "n_keep",
        "n_discard", "cache_salt", "extra_key", "priority",
    ]  # fmt: skip
    assert set(listed) <= isolation.REFUSED | isolation.DROPPED


def test_vllm_copies_extra_arguments_to_where_transfers_are_kept():
    with pytest.raises(Rejection) as caught:
        isolation.isolation_edits({"vllm_xargs": {"kv_transfer_params": "x"}})
    assert caught.value.param == "vllm_xargs.kv_transfer_params"
    assert isolation.isolation_edits({"vllm_xargs": {"mine": 1}}) == {}


def test_ordinary_fields_stay():
    body = {"model": "m", "messages": [], "user": "u", "metadata": {"rid": "1"}, "seed": 1}
    assert isolation.isolation_edits(body) == {}


@pytest.mark.parametrize(
    "body",
    [
        {"Model": "m"},
        {"model": "m", "messages": [{"Role": "user"}]},
        {"messages": [{"content": [{"image_url": {"Url": "x"}}]}]},
        {"options": {"Num_ctx": 5}},
        {"mess\u00c4ges": 1},
    ],
)
def test_names_that_an_engine_would_fold_are_refused(body):
    with pytest.raises(Rejection) as refusal:
        isolation.require_exact_names(body)
    assert refusal.value.kind is Kind.MALFORMED
    assert refusal.value.param is not None


def test_small_names_and_the_clients_own_pass():
    isolation.require_exact_names(
        {
            "model": "M",
            "messages": [{"role": "user", "content": "Content"}, {"content": [{"text": "A"}]}],
            "tools": [{"function": {"parameters": {"properties": {"City": {}}}}}],
            "metadata": {"A": 1},
        }
    )
