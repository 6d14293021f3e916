"""The simulated engine over HTTP: the incident, what the API shows, and real clients."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from gateway.simulate import Habits, Timing
from gateway.simulate.tokeniser import Tokeniser
from simulated import LIMIT, PLAIN, fill, serving
from waiting import own_clock

# --- the incident ------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
async def test_boundary_of_the_fixed_engine(offset: int):
    async with serving() as sim:
        await fill(sim)
        length = LIMIT + offset
        status, answer = await sim.generate(length, "asker")
        if offset <= 0:
            assert (status, answer["meta_info"]["prompt_tokens"]) == (200, length)
            assert not sim.handle.truths["asker"].leaked
        else:
            assert status == 400
            assert answer["error"]["message"] == (
                f"Input length ({length} tokens) exceeds the maximum allowed length "
                "(1018 tokens). Use a shorter input or enable --allow-auto-truncate."
            )
        assert sim.handle.idle


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
async def test_boundary_of_the_leaking_engine(offset: int):
    async with serving("to_finish") as sim:
        await fill(sim)
        length = LIMIT + offset
        status, answer = await sim.generate(length, "asker")
        meta, truth = answer["meta_info"], sim.handle.truths["asker"]
        assert (status, meta["prompt_tokens"], meta["cached_tokens"]) == (200, length, 0)
        assert meta["finish_reason"] == {"type": "length", "length": 200}
        assert truth.leaked is (offset > 0)
        assert truth.prefill_tokens == (1 if offset > 0 else length)


async def test_leaked_text_is_the_named_victims(tmp_path: Path):
    path = tmp_path / "oracle.jsonl"
    async with serving("to_finish", oracle=path) as sim:
        texts = await fill(sim)
        body = {
            "messages": [{"role": "user", "content": "word " * 900}],
            "rid": "asker",
            "max_tokens": 600,
            "ignore_eos": True,
        }
        status, answer = await sim.post("/v1/chat/completions", body)
        assert status == 200
        text = answer["choices"][0]["message"]["content"]
        truth = sim.handle.truths["asker"]
        assert truth.leaked
        assert set(truth.copied) <= set(texts)
        for rid, count in truth.copied.items():
            longest = max(common_run(text, texts[rid]), default="")
            assert len(longest) >= 24, (rid, count, longest)
        clean = set(texts) - set(truth.copied)
        assert all(len(max(common_run(text, texts[rid]))) < 40 for rid in clean)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["owner"] for line in lines] == [*texts, "asker"]
    assert lines[-1]["copied"] == truth.copied


def common_run(text: str, source: str) -> list[str]:
    """The substrings of 24 characters and more that both hold, longest first."""
    found = [""]
    for start in range(len(text)):
        end = start + len(found[0]) + 1
        while end <= len(text) and text[start:end] in source:
            found.insert(0, text[start:end])
            end += 1
    return sorted(found, key=len, reverse=True)[:1]


async def test_the_leak_is_faster_than_its_prefill_could_be():
    slow = Timing(base=0.0, prefill_tokens_per_second=5_000.0, inter_token=0.0, spread=0.05)
    async with serving("to_finish", timing=slow) as sim:
        began = time.perf_counter()
        await sim.generate(LIMIT, "prefilled", max_new_tokens=1)
        assert time.perf_counter() - began > 0.15
        async with own_clock() as clock:
            await sim.generate(LIMIT + 1, "leaked", max_new_tokens=1)
            assert clock() < 0.05


async def test_nothing_leaks_at_or_under_the_limit_in_mixed_traffic():
    async with serving("to_finish", habits=Habits(q_copy=1.0)) as sim:

        async def one(number: int) -> None:
            length = 1 + number * 53 % LIMIT
            ids = [3 + (number * 31 + k * 7) % 2000 for k in range(length)]
            if number % 3:
                status, _ = await sim.post(
                    "/generate",
                    {
                        "input_ids": ids,
                        "rid": f"r{number}",
                        "sampling_params": {"max_new_tokens": 30},
                    },
                )
            else:
                body = {"prompt": ids, "max_tokens": 30, "rid": f"r{number}"}
                status, _ = await sim.events("/v1/completions", body)
            assert status == 200

        for start in range(0, 400, 40):
            await asyncio.gather(*(one(start + n) for n in range(40)))
        truths = sim.handle.truths
        assert len(truths) == 400
        assert not any(truth.leaked or truth.exposed_tokens for truth in truths.values())
        assert sim.handle.idle


async def test_len_check_turns_the_leak_into_500():
    async with serving("to_finish", "len_check") as sim:
        await fill(sim)
        long = {"messages": [{"role": "user", "content": "word " * 900}], "rid": "whole"}
        status, answer = await sim.post("/v1/chat/completions", long)
        assert (status, answer["type"]) == (500, "InternalServerError")
        status, events = await sim.events("/v1/chat/completions", long | {"rid": "streamed"})
        assert status == 200
        assert [list(event) for event in events[:-1]] == [["error"]]
        assert events[0]["error"]["code"] == 500
        for rid in ("whole", "streamed"):
            truth = sim.handle.truths[rid]
            assert (truth.leaked, truth.status, truth.completion_tokens) == (False, 500, 0)
        assert sim.handle.idle
        status, answer = await sim.post("/v1/messages", long | {"max_tokens": 5})
        assert (status, answer["error"]["message"]) == (500, "Internal server error")


async def test_same_seed_and_requests_same_answers():
    async def answers(seed: int) -> list[str]:
        async with serving("to_finish", seed=seed) as sim:
            await fill(sim)
            bodies = [await sim.generate(length, f"r{length}") for length in (20, 1017, 1300)]
            return [body["text"] for _, body in bodies]

    first = await answers(1)
    assert first == await answers(1)
    assert first != await answers(2)


# --- identity, discovery, other faults ---------------------------------------------------------


async def test_ids_are_honoured():
    async with serving() as sim:
        _, answer = await sim.post("/v1/chat/completions", PLAIN | {"rid": "from-body"})
        assert answer["id"] == "from-body"
        _, answer = await sim.post("/v1/responses", {"input": "hi"}, headers={"X-Request-Id": "h1"})
        assert answer["id"] == "resp_h1"
        _, events = await sim.events("/v1/completions", {"prompt": "x", "rid": "s1"})
        assert {event["id"] for event in events[:-1]} == {"s1"}
        _, answer = await sim.post("/v1/chat/completions", PLAIN | {"rid": "from-body"})
        assert [owner for owner in sim.handle.truths if owner.startswith("from-body#")]


async def test_both_legs_limits_show_on_the_client_port():
    async with serving("to_finish") as sim:
        for path in ("/server_info", "/get_server_info"):
            async with sim.client.get(path) as answer:
                info = await answer.json()
            assert [leg["max_req_input_len"] for leg in info["prefill"]] == [1018]
            assert [leg["max_req_input_len"] for leg in info["decode"]] == [4090]
            assert [leg["disaggregation_mode"] for leg in info["decode"]] == ["decode"]
            assert info["internal_states"][0]["memory_usage"]["token_capacity"] == 4096
        async with sim.client.get("/v1/models") as answer:
            assert (await answer.json())["data"][0]["max_model_len"] == 4096
        async with sim.client.get("/metrics") as answer:
            text = await answer.text()
        assert (
            'sglang:max_total_num_tokens{model_name="poolgate-sim",engine_type="prefill"} 1024'
            in text
        )


async def test_without_a_router_the_prefill_worker_answers():
    async with serving(router=False) as sim, sim.client.get("/server_info") as answer:
        info = await answer.json()
        assert (info["max_total_num_tokens"], info["max_req_input_len"]) == (1024, 1018)
        assert info["internal_states"][0]["memory_usage"]["token_capacity"] == 1024


async def test_the_api_does_not_show_which_faults_are_on():
    async def shown(*faults: str) -> list[Any]:
        async with serving(*faults) as sim:
            out = []
            for path in ("/server_info", "/model_info", "/v1/models", "/metrics"):
                async with sim.client.get(path) as answer:
                    out.append(await answer.text())
            info = json.loads(out[0])
            for leg in (*info["prefill"], *info["decode"]):
                leg.pop("startup_time")
            models = json.loads(out[2])
            models["data"][0].pop("created")
            return [info, out[1], models, out[3]]

    assert await shown() == await shown(
        "to_finish", "salt", "early_free", "empty200", "drift", "swap"
    )


async def test_a_false_server_info_states_the_context():
    async with serving("to_finish", "server_info") as sim, sim.client.get("/server_info") as answer:
        [prefill] = (await answer.json())["prefill"]
        assert (prefill["max_total_num_tokens"], prefill["max_req_input_len"]) == (4096, 4090)


@pytest.mark.parametrize("stream", [False, True])
async def test_swap_gives_two_clients_each_others_answers(stream: bool):
    async with serving("swap", timing=Timing(0.02, 0.0, 0.001)) as sim:

        async def ask(rid: str) -> set[str]:
            body = PLAIN | {"rid": rid}
            if not stream:
                return {(await sim.post("/v1/chat/completions", body))[1]["id"]}
            _, events = await sim.events("/v1/chat/completions", body)
            return {event["id"] for event in events[:-1]}

        assert await asyncio.gather(ask("a"), ask("b")) == [{"b"}, {"a"}]
        assert await ask("alone") == {"alone"}
        status, _ = await sim.post("/v1/chat/completions", {})
        assert status == 400
        assert sim.handle.idle


async def test_empty200_and_drift():
    async with serving("empty200", "drift") as sim:
        status, answer = await sim.post("/v1/chat/completions", PLAIN)
        [choice] = answer["choices"]
        assert (status, choice["message"]["content"], choice["finish_reason"]) == (200, "", None)
        published = Tokeniser(sim.handle.service.settings.tokenizer)
        text = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
        assert answer["usage"]["prompt_tokens"] > len(published.encode([text])[0])


# --- clients -----------------------------------------------------------------------------------


async def test_the_openai_client_understands_it():
    async with serving() as sim:
        url = f"{sim.handle.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            chat = await client.chat.completions.create(model="m", messages=PLAIN["messages"])
            assert chat.choices[0].message.content
            stream = await client.responses.create(model="m", input="hi", stream=True)
            kinds = [event.type async for event in stream]
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            with pytest.raises(openai.BadRequestError, match="longer than the model's context"):
                await client.completions.create(model="m", prompt="word " * 3000)


async def test_the_anthropic_client_understands_it():
    async with serving() as sim:
        url = sim.handle.url
        async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
            arguments = {"model": "m", "max_tokens": 6, "messages": PLAIN["messages"]}
            message = await client.messages.create(**arguments)
            assert message.content[0].text
            async with client.messages.stream(**arguments) as stream:
                final = await stream.get_final_message()
            assert final.usage.output_tokens in range(1, 7)
