"""The simulated engine over HTTP: refusals, counts, and how requests and pages live and end."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from gateway.simulate import Habits, Timing
from simulated import PLAIN, serving
from waiting import until

# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "wrapped"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 3000}]}, None),
        ("/v1/completions", {"prompt": "word " * 3000}, None),
        ("/v1/embeddings", {"input": "word " * 3000}, None),
        ("/generate", {"text": "word " * 3000}, "error"),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "word " * 3000}], "max_tokens": 3},
            "error",
        ),
        ("/v1/responses", {"input": "word " * 3000}, "error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_over_the_context_is_400_before_any_stream(
    path: str, body: dict[str, Any], wrapped: str | None, stream: bool
):
    async with serving("to_finish") as sim:
        status, answer = await sim.post(path, body | {"stream": stream})
        message = (answer[wrapped] if wrapped else answer)["message"]
        assert status == 400
        assert "is longer than the model's context length (4096 tokens)" in message
        assert sim.handle.counters.refused == (0 if path == "/v1/embeddings" else 1)


async def test_over_the_pool_comes_inside_a_stream():
    async with serving() as sim:
        long = {"messages": [{"role": "user", "content": "word " * 900}], "max_tokens": 5}
        status, events = await sim.events("/v1/chat/completions", long)
        assert (status, events[0]["error"]["code"], events[1:]) == (200, 400, ["[DONE]"])
        status, events = await sim.events("/v1/messages", long)
        assert [event["type"] for event in events] == ["message_start", "error", "message_stop"]
        status, events = await sim.events("/generate", {"text": "word " * 900})
        assert "maximum allowed length (1018 tokens)" in events[0]["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", PLAIN | {"max_tokens": "6"}),
        ("/v1/chat/completions", PLAIN | {"n": 0}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/completions", {"prompt": [5_000_000]}),
        ("/v1/completions", {"prompt": [[1], "x"]}),
        ("/v1/messages", {"messages": PLAIN["messages"]}),
        ("/v1/responses", {"input": 3}),
        ("/generate", {"text": "a", "input_ids": [1]}),
        ("/tokenize", {}),
        ("/v1/chat/completions", [1]),
    ],
)
async def test_bad_requests_are_400(path: str, body: Any):
    async with serving() as sim:
        status, _ = await sim.post(path, body)
        assert status == 400
        async with sim.client.post(path, data=b'{"model": ') as answer:
            assert answer.status == 400


KINDS: list[Any] = [
    None, True, 0, -1, 1.5, 2**70, "x", [], {}, [1], ["a"], [None], [[1]],
    {"type": 3}, {"type": "tool"}, [{"role": "user"}], [{"role": 3}], [{"function": {}}],
    [{"function": {"name": 3}}], [{"name": "f", "input_schema": 3}], [{"type": "function_call"}],
    [{"role": "user", "content": [{"type": "tool_result", "content": 3}, {"type": "text"}]}],
    [{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": 3}}]}],
    [{"type": "reasoning", "summary": 3}], [{"role": "developer", "content": {"a": 1}}],
    {"function": 3}, {"include_usage": 3},
]  # fmt: skip
FIELDS = (
    "model", "messages", "prompt", "input", "text", "input_ids", "max_tokens", "n", "stream",
    "max_completion_tokens", "max_output_tokens", "stream_options", "tools", "tool_choice",
    "system", "thinking", "instructions", "reasoning", "reasoning_effort", "sampling_params",
    "chat_template_kwargs", "rid", "cache_salt", "ignore_eos", "continue_final_message", "echo",
    "previous_response_id", "metadata", "add_special_tokens", "add_generation_prompt",
)  # fmt: skip
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": PLAIN,
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/messages": PLAIN,
    "/v1/messages/count_tokens": PLAIN,
    "/v1/responses": {"input": "x", "max_output_tokens": 4},
    "/v1/embeddings": {"input": "x"},
    "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 2}},
    "/tokenize": {"prompt": "x"},
}


@pytest.mark.parametrize("path", VALID)
async def test_no_body_breaks_the_engine(path: str):
    rng = random.Random(path)
    async with serving() as sim:
        for _ in range(400):
            body = dict(VALID[path])
            for field in rng.sample(FIELDS, rng.randint(1, 3)):
                body[field] = rng.choice(KINDS)
            async with sim.client.post(path, json=body) as answer:
                await answer.read()
                assert answer.status in (200, 400, 404), body
        assert sim.handle.idle


async def test_unknown_paths_are_404():
    async with serving() as sim, sim.client.get("/nope") as answer:
        assert (answer.status, await answer.json()) == (404, {"detail": "Not Found"})


# --- counts and usage --------------------------------------------------------------------------


async def test_every_count_of_a_conversation_agrees():
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "2"}],
        },
    ]
    async with serving() as sim:
        _, tokens = await sim.post("/tokenize", {"messages": messages})
        _, counted = await sim.post(
            "/v1/messages/count_tokens",
            {
                "messages": messages[1:],
                "system": "Be brief.",
            },
        )
        _, chat = await sim.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        _, said = await sim.post(
            "/v1/responses",
            {
                "instructions": "Be brief.",
                "input": messages[1:],
                "max_output_tokens": 3,
            },
        )
        counts = {
            tokens["count"],
            len(tokens["tokens"]),
            counted["input_tokens"],
            chat["usage"]["prompt_tokens"],
            said["usage"]["input_tokens"],
        }
        assert len(counts) == 1
        assert set(sim.handle.counters.prompt_lengths) == counts


async def test_usage_of_batches_and_choices():
    async with serving() as sim:
        body = {"prompt": ["a b c", "d"], "max_tokens": 3, "n": 2, "ignore_eos": True}
        _, answer = await sim.post("/v1/completions", body)
        _, tokens = await sim.post("/tokenize", {"prompt": body["prompt"]})
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == sum(tokens["count"])
        assert answer["usage"]["completion_tokens"] == 12
        _, embedded = await sim.post("/v1/embeddings", {"input": body["prompt"]})
        assert embedded["usage"]["prompt_tokens"] == sum(tokens["count"])
        assert embedded["data"][0]["embedding"] != embedded["data"][1]["embedding"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_in_streams(path: str):
    async with serving() as sim:
        body = PLAIN | {"prompt": "Hello", "n": 2, "ignore_eos": True}
        _, events = await sim.events(path, body)
        assert not any(event.get("usage") for event in events[:-1])
        options = {"include_usage": True, "continuous_usage_stats": True}
        _, events = await sim.events(path, body | {"stream_options": options})
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"] == []
        total = events[-2]["usage"]
        assert total["completion_tokens"] == 12
        running_counts = [event["usage"] for event in events[:-2] if event.get("usage")]
        assert {usage["prompt_tokens"] for usage in running_counts} == {total["prompt_tokens"]}
        reasons = [
            choice["finish_reason"]
            for event in events[:-2]
            for choice in event["choices"]
            if choice["finish_reason"]
        ]
        assert reasons == ["length", "length"]


async def test_a_stream_says_what_the_whole_answer_says():
    async with serving() as sim, serving() as twin:
        body = PLAIN | {"max_tokens": 80}
        _, whole = await sim.post("/v1/chat/completions", body)
        _, events = await twin.events("/v1/chat/completions", body)
        pieces = [event["choices"][0]["delta"].get("content", "") for event in events[:-1]]
        assert "".join(pieces) == whole["choices"][0]["message"]["content"]


async def test_prefix_hits_are_reported_by_salt():
    async with serving() as sim:
        body = {"prompt": "word " * 300, "max_tokens": 1}
        cached = []
        for salt in ("a", "a", "b"):
            _, answer = await sim.post("/v1/completions", body | {"cache_salt": salt})
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 576, 0]
        _, answer = await sim.post(
            "/v1/messages",
            {
                "messages": [{"role": "user", "content": "word " * 300}],
                "max_tokens": 1,
            },
        )
        assert "cache_read_input_tokens" not in answer["usage"]
        async with sim.client.post("/flush_cache") as flushed:
            assert flushed.status == 200
        _, answer = await sim.post("/v1/completions", body | {"cache_salt": "a"})
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


# --- lifetimes ---------------------------------------------------------------------------------

SLOW = Timing(base=0.0, prefill_tokens_per_second=0.0, inter_token=0.02)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_pages(stream: bool):
    async with serving(timing=SLOW) as sim:
        body = PLAIN | {"max_tokens": 2000, "ignore_eos": True, "stream": stream, "rid": "gone"}
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(0.15),
                sim.client.post("/v1/chat/completions", json=body) as answer,
            ):
                await answer.read()
        await sim.until_idle()
        truth = sim.handle.truths["gone"]
        assert truth.stage == "aborted"
        assert truth.completion_tokens < 1000


async def test_abort_request_ends_an_answer():
    async with serving(timing=SLOW) as sim:
        body = PLAIN | {"max_tokens": 2000, "ignore_eos": True, "rid": "long"}
        asked = asyncio.gather(sim.post("/v1/chat/completions", body))
        await until(lambda: sim.handle.service.driver.running)
        status, _ = await sim.post("/v1/completions", {"prompt": "x", "rid": "long"})
        assert status == 400  # the id is in use
        async with sim.client.post("/flush_cache") as flushed:
            assert flushed.status == 400
        await sim.post("/abort_request", {"rid": "long"})
        [(status, answer)] = await asked
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "abort")
        await sim.until_idle()


async def test_more_work_than_memory_waits_its_turn():
    async with serving(timing=SLOW, decode_pool=1088) as sim:
        answers = await asyncio.gather(
            *(sim.generate(400, f"r{n}", max_new_tokens=5) for n in range(8))
        )
        assert [status for status, _ in answers] == [200] * 8
        assert not any(truth.leaked for truth in sim.handle.truths.values())
        assert sim.handle.idle


async def test_an_aborted_wait_leaves_the_queue():
    async with serving(timing=SLOW, decode_pool=1088) as sim:
        first = asyncio.gather(sim.generate(900, "first", max_new_tokens=100))
        await until(lambda: sim.handle.service.driver.running)
        second = asyncio.gather(sim.generate(900, "second", max_new_tokens=5))
        await until(lambda: sim.handle.service.driver.engine.waiting)
        await sim.post("/abort_request", {"rid": "second"})
        [(_, answer)] = await second
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        await sim.post("/abort_request", {"abort_all": True})
        await first
        await sim.until_idle()


async def test_early_free_overwrites_the_next_tenant():
    timing = Timing(base=0.0, prefill_tokens_per_second=5_000.0, inter_token=0.02, spread=0.0)
    sizes = {"prefill_pool": 4096, "decode_pool": 1088, "prefix_cache": False}
    habits = Habits(q_copy=1.0, mean_run=3.0)
    for faults, leaks in ((("early_free",), True), ((), False)):
        async with serving(*faults, timing=timing, habits=habits, **sizes) as sim:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await sim.post(
                        "/generate",
                        {
                            "input_ids": [700 + k % 90 for k in range(900)],
                            "rid": "left",
                        },
                    )
            status, _ = await sim.generate(250, "next", max_new_tokens=40)
            truth = sim.handle.truths["next"]
            assert status == 200
            assert (truth.copied.get("left", 0) > 0) is leaks
            await sim.until_idle()
