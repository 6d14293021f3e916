"""The simulated engine answers real requests in the shapes a real SGLang 0.5.23 was recorded in.

Each recorded request is replayed; what must agree is the structure, not the words: status, the
members at every level, the kinds of their values, and in streams the order of the events.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from recorded import Exchange, load
from simulated import serving

# What the simulation leaves out: an instance's clocks and counters, which no client reads.
UNMODELLED = {
    "num_retractions",
    "storage_prefetch_wait",
    "storage_staging_wait",
    "forward_entry_time",
    "prefill_finished_time",
    "queue_time",
    "reasoning_tokens",
    "weight_versions",
    "cached_tokens_details",
    "e2e_latency",
    "request_received_ts",
    "first_token_latency",
    "api_server_dispatch_finish_ts",
    "request_finished_ts",
    "decode_throughput",
    "response_sent_to_client_ts",
    "cache_read_input_tokens",
}
SIZES = {"context": 1024, "prefill_pool": 4096, "decode_pool": 4096}  # of the recorded engine
WHOLE = (
    "chat",
    "chat_n2",
    "chat_prompt_plus_max_too_long",
    "completions",
    "completions_batch",
    "generate",
    "messages",
    "messages_count",
    "responses",
    "tokenize_chat",
    "tokenize_prompt",
)
LONG_TEXT = "word " * 1400
LONG_CHAT = {"messages": [{"role": "user", "content": LONG_TEXT}], "max_tokens": 8}
TOO_LONG = {  # the recorded requests were cut when they were written down
    "chat_too_long": LONG_CHAT,
    "chat_too_long_stream": LONG_CHAT | {"stream": True},
    "completions_too_long": {"prompt": LONG_TEXT},
    "generate_too_long": {"input_ids": [7] * 1400},
    "messages_too_long": LONG_CHAT,
    "responses_too_long": {"input": LONG_TEXT},
}
STREAMS = (
    "chat_stream",
    "chat_stream_continuous",
    "chat_stream_nousage",
    "completions_stream",
    "generate_stream",
    "messages_stream",
    "responses_stream",
)


def shape(value: Any) -> Any:
    """The structure of a JSON value; a list of plain values is one word."""
    if isinstance(value, dict):
        return {key: shape(member) for key, member in value.items() if key not in UNMODELLED}
    if isinstance(value, list):
        inner = [shape(item) for item in value]
        return inner if any(isinstance(item, dict) for item in value) else "list"
    return "number" if type(value) in (int, float) else type(value).__name__


def steps(stream: bytes) -> list[Any]:
    """The events' shapes in order, with repetitions left out."""
    found: list[Any] = []
    for block in stream.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        data = fields["data"]
        event = (fields.get("event"), data if data == "[DONE]" else shape(json.loads(data)))
        if event not in found[-1:]:
            found.append(event)
    return found


async def replay(recorded: Exchange, request: dict[str, Any] | None = None) -> tuple[int, bytes]:
    body = request or json.loads(recorded.request)
    async with serving(**SIZES) as sim, sim.client.post(recorded.path, json=body) as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize("name", WHOLE)
async def test_whole_answers(name: str):
    recorded = load("sglang", name)
    body = json.loads(recorded.request) | {"ignore_eos": True}
    status, answer = await replay(recorded, body)
    assert status == recorded.status
    assert shape(json.loads(answer)) == shape(json.loads(recorded.body))


@pytest.mark.parametrize("name", TOO_LONG)
async def test_refusals(name: str):
    recorded = load("sglang", name)
    status, answer = await replay(recorded, TOO_LONG[name])
    assert status == recorded.status == 400
    said, expected = (re.sub(rb"\d+ tokens", b"N tokens", body) for body in (answer, recorded.body))
    assert json.loads(said) == json.loads(expected)


@pytest.mark.parametrize("name", STREAMS)
async def test_streams(name: str):
    recorded = load("sglang", name)
    body = json.loads(recorded.request) | {"ignore_eos": True}
    status, answer = await replay(recorded, body)
    assert status == recorded.status
    assert steps(answer) == steps(recorded.body)
