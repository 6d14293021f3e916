"""Request fields by which one request reaches another one's state in the engine.

Pages, transfers, sessions, slots, cache namespaces and places in the queue belong to the operator,
not to a client. The list is the sum over SGLang, vLLM, TensorRT-LLM and llama.cpp: an engine that
does not know a field ignores it, and a client has no use for any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dialects.wire import malformed

REFUSED = frozenset(
    {
        # Transfers between prefill and decode: made-up ones read other requests' pages.
        "kv_transfer_params",
        "ec_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "disaggregated_params",
        # Placement: past the router's choice, onto a rank whose limit was not asked.
        "routed_dp_rank",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        # State kept between requests, and slots of others.
        "session_params",
        "session_id",
        "id_slot",
        "slot_id",
        "n_keep",
        "n_discard",
        # Code and files run or loaded by the engine, and its inner state.
        "custom_logit_processor",
        "lora_path",
        "return_hidden_states",
        # Changes what a token means without changing its id, so it poisons the shared prefix cache.
        "positional_embed_overrides",
    }
)
_LONGEST_NAME = 64  # of a client's own repeated in a message
DROPPED = frozenset({"rid", "request_id", "cache_salt", "extra_key", "priority"})

_TOUCHED = REFUSED | DROPPED

# What of a request is the client's own, and no member that an engine reads by name.
_CLIENTS_OWN = frozenset({"tools", "functions", "response_format", "metadata", "logit_bias"})
# vLLM copies this object's members to where it keeps kv_transfer_params.
_VLLM_EXTRA = "vllm_xargs"


def isolation_edits(body: Mapping[str, Any]) -> dict[str, None]:
    """The members to drop before forwarding: ids, salts and priorities that are the gateway's own.

    Raises ``Rejection`` (MALFORMED) naming the field where a refused one holds a value. A null
    one does nothing in any engine, so it is dropped and the request let through.
    """
    _refuse_values(body, "")
    extra = body.get(_VLLM_EXTRA)
    if isinstance(extra, dict):
        _refuse_values(extra, _VLLM_EXTRA + ".")
    return dict.fromkeys(_in(body, _TOUCHED))


def _in(body: Mapping[str, Any], names: frozenset[str]) -> Sequence[str]:
    """Those of ``names`` that ``body`` has, in order: hardly ever any."""
    return () if names.isdisjoint(body) else sorted(names & body.keys())


def _refuse_values(body: Mapping[str, Any], prefix: str) -> None:
    for name in _in(body, REFUSED):
        if body[name] is not None:
            param = prefix + name
            raise malformed(f"The field '{param}' may not be set through this gateway.", param)


def require_exact_names(body: Mapping[str, Any]) -> None:
    """Refuse names that an engine which folds them would read as one of ours.

    ``Messages`` or ``Content`` would be run and not counted. What tools' schemas and the like
    call their members is not looked at.

    Raises ``Rejection`` (MALFORMED) naming the field.
    """
    waiting: list[Any] = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for name, member in value.items():
                if name != name.casefold():
                    param = name if len(name) <= _LONGEST_NAME and name.isprintable() else None
                    raise malformed("This engine takes field names in small letters only.", param)
                if name not in _CLIENTS_OWN:
                    waiting.append(member)
