"""Other tenants' text in answers: withheld, flagged, left alone (cases: research detection 1.2).

The engine's fault is real: its text is copied from the memory that its page table reaches.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import asynccontextmanager
from hashlib import sha256

import aiohttp
import pytest

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, event, head
from gateway.core.fingerprint.normal import normal_slices
from gateway.simulate import INSTANT, Faults, SimulateSettings
from gateway.simulate.text import Habits
from integration.conftest import gateway_and_engine, gateway_for
from simulated import TENANTS, secret
from waiting import PATIENCE

NAMES = tuple(f"t{number}" for number in range(len(TENANTS) + 1))
ASKING = NAMES[-1]
KEYS = {
    "tenants": [{"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in NAMES]
}
OTHERS_OFF = {"latency": {"action": "off"}, "prompt_tokens": {"sample": 0.0}}
BLOCK = {"fingerprints": {"action": "block", "learning": "0s"}, **OTHERS_OFF}
FLAG = {"fingerprints": {"action": "flag", "learning": "0s"}, **OTHERS_OFF}
LEARNING = {"fingerprints": {"action": "block", "learning": "1h"}, **OTHERS_OFF}
LEAKY = SimulateSettings(
    timing=INSTANT,
    context=4096,
    prefill_pool=1024,
    decode_pool=4096,
    faults=Faults(to_finish=True, server_info=True),
    mean_answer=300,
    habits=Habits(q_copy=0.95, mean_run=100),  # its tokens are short: runs of about 200 bytes
)
SECRET = secret("harbour pilots")


def asking(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


def count(app, name, **labels):
    return app.metrics.registry.get_sample_value(name, labels) or 0


def verdicts(app, verdict):
    return count(app, "poolgate_checks_total", check="fingerprints", verdict=verdict)


async def post(app, body, tenant=ASKING, path="/v1/chat/completions"):
    async with aiohttp.ClientSession() as http:
        key = {"x-api-key": tenant}
        async with http.post(app.data_url + path, json=body, headers=key) as reply:
            return reply.status, await reply.read()


async def stream(app, body, tenant=ASKING, path="/v1/chat/completions"):
    """The bytes of a stream, and whether it ended as streams should."""
    seen = b""
    async with aiohttp.ClientSession() as http:
        key = {"x-api-key": tenant}
        async with http.post(
            app.data_url + path, json=body | {"stream": True}, headers=key
        ) as reply:
            try:
                async for part in reply.content.iter_any():
                    seen += part
            except aiohttp.ClientPayloadError:
                return seen, False
    return seen, True


async def remembered():
    """Wait until nothing is being remembered any more."""
    async with asyncio.timeout(PATIENCE):
        await asyncio.sleep(0.01)
        while any("fingerprints" in task.get_name() for task in asyncio.all_tasks()):
            await asyncio.sleep(0.001)


# --- the incident -----------------------------------------------------------------------------


@asynccontextmanager
async def leaky_gateway(integrity):
    """A gateway that believes the engine's false limit."""
    async with gateway_and_engine(LEAKY, integrity=integrity, **KEYS) as live:
        yield live


async def fill(live):
    """Let tenants leave their prompts in all of the engine's memory."""
    for name, text in zip(NAMES, map(secret, TENANTS), strict=False):
        assert (await post(live.app, asking(text), tenant=name))[0] == 200
    await remembered()


def over_pool(run):
    """A prompt that is over the prefill pool and under the limit that the engine states."""
    return asking(f"{run}" + " a" * 1500, max_tokens=400)


def normal(text):
    return b"".join(normal_slices([text])).strip()


def shares(text, other, least):
    """Whether the texts have so many normal bytes in a row in common."""
    ours, theirs = normal(text), normal(other)
    return any(ours[at : at + least] in theirs for at in range(len(ours) - least + 1))


async def test_leaks_of_the_incident_are_withheld():
    async with leaky_gateway(BLOCK) as live:
        withheld, passed = 0, []
        for run in range(20):
            await fill(live)
            status, body = await post(live.app, over_pool(run))
            if status == 502:
                withheld += 1
                assert json.loads(body)["error"]["code"] == "response_withheld"
                assert b"Note" not in body
            else:
                passed.append(json.loads(body)["choices"][0]["message"]["content"])
        assert withheld >= 6
        for text in passed:
            assert not any(shares(text, secret(name), 160) for name in TENANTS)
        incidents = [one for one in live.app.recorder.incidents if one["kind"] == "fingerprints"]
        reasons = [one["finding"]["reason"] for one in incidents]
        assert reasons.count("prompt_run") == withheld
        assert "finding_rate" in reasons  # all of them together say that the backend leaks
        assert "Note" not in json.dumps(incidents)


async def test_without_the_fault_all_answers_pass():
    sim = SimulateSettings(timing=INSTANT, context=4096, prefill_pool=4096, decode_pool=8192)
    async with gateway_and_engine(sim, integrity=BLOCK, **KEYS) as live:
        for run in range(3):
            for name, text in zip(NAMES, map(secret, TENANTS), strict=False):
                body = asking(f"Run {run}. {text}", max_tokens=200)
                assert (await post(live.app, body, tenant=name))[0] == 200
        await remembered()
        assert verdicts(live.app, "ok") == 24
        assert verdicts(live.app, "leak") == 0


# --- what passes and what does not, with an engine that says what the test tells it ------------


def whole(text):
    async def script(request, wire):
        choice = {"index": 0, "message": {"role": "assistant", "content": text}}
        body = {**CHAT, "choices": [{**choice, "finish_reason": "stop"}]}
        wire.write(answer(json.dumps(body).encode()))

    return script


def events_of(text, step=6):
    yield from (delta(text[start : start + step]) for start in range(0, len(text), step))
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield b"data: [DONE]\n\n"


def streamed(text, pause=0.0):
    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True))
        for each in events_of(text):
            wire.write(chunk(each))
            if pause:
                await asyncio.sleep(pause)
        wire.write(chunk(b""))

    return script


@asynccontextmanager
async def scripted(integrity, *, prompt=SECRET, tenant="t0", tenants=KEYS):
    """A gateway after ``tenant`` sent a prompt, and the engine whose next answer may be set."""
    async with RawEngine(limit=50_000, context=90_000).running() as engine:
        async with gateway_for(engine.url, integrity=integrity, **tenants) as app:
            assert (await post(app, asking(prompt), tenant=tenant))[0] == 200
            await remembered()
            yield app, engine


@pytest.mark.parametrize(("integrity", "status"), [(BLOCK, 502), (FLAG, 200), (LEARNING, 200)])
async def test_a_whole_answer_with_anothers_text(integrity, status):
    async with scripted(integrity) as (app, engine):
        engine.script = whole("Certainly. " + SECRET[:600])
        got, body = await post(app, asking("What is new?"))
        assert got == status
        assert (b"Note 3" in body) == (status == 200)
        assert verdicts(app, "leak") == 1
        [incident] = app.recorder.incidents
        assert (incident["kind"], incident["finding"]["reason"]) == ("fingerprints", "prompt_run")
        assert count(
            app, "poolgate_fingerprint_findings_total", backend="sim", strength="strong_run"
        )


async def test_a_stream_is_cut_before_much_of_anothers_text_is_out():
    plain = "Here is what I know about the weather of this week in the north. " * 3
    async with scripted(BLOCK) as (app, engine):
        engine.script = streamed(plain + SECRET[:900], pause=0.001)  # not all of it in one read
        seen, ended_well = await stream(app, asking("What is new?"))
        assert not ended_well
        assert b"response_withheld" in seen
        assert b"[DONE]" not in seen
        text = "".join(
            json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            for line in seen.decode().splitlines()
            if line.startswith("data: ") and '"choices"' in line
        )
        assert (plain + SECRET).startswith(text)
        assert len(text) - len(plain) < 130


def chat(**delta):
    return event({"choices": [{"index": 1, "delta": delta}]})


def tool_call(text):
    return chat(tool_calls=[{"index": 0, "function": {"arguments": text}}])


def completion(text):
    return event({"choices": [{"index": 0, "text": text}]})


def block(text):
    data = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }
    return b"event: content_block_delta\n" + event(data)


def thinking(text):
    thought = {"type": "thinking_delta", "thinking": text}
    return event({"type": "content_block_delta", "index": 0, "delta": thought})


def output_text(text):
    places = {"output_index": 0, "content_index": 0}
    return event({"type": "response.output_text.delta", **places, "delta": text})


def generated(text):
    return event({"text": text, "meta_info": {"id": "x"}})


MESSAGES = [{"role": "user", "content": "What is new?"}]


@pytest.mark.parametrize(
    ("path", "body", "event_of", "cumulative"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}, lambda text: chat(content=text), False),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES},
            lambda t: chat(reasoning_content=t),
            False,
        ),
        ("/v1/chat/completions", {"messages": MESSAGES}, tool_call, False),
        ("/v1/completions", {"prompt": "What is new?"}, completion, False),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, block, False),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, thinking, False),
        ("/v1/responses", {"input": "What is new?"}, output_text, False),
        ("/generate", {"text": "What is new?"}, generated, True),
    ],
)
async def test_every_dialect_and_channel_is_watched(path, body, event_of, cumulative):
    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True))
        for start in range(0, 900, 6):
            text = SECRET[: start + 6] if cumulative else SECRET[start : start + 6]
            wire.write(chunk(event_of(text)))
            await asyncio.sleep(0)
        wire.write(chunk(b""))

    async with scripted(BLOCK) as (app, engine):
        engine.script = script
        seen, ended_well = await stream(app, {"model": "m", **body}, path=path)
        assert not ended_well
        assert b"response_withheld" in seen or b"upstream_integrity" in seen
        assert seen.count(b"data: ") < 130 / 6
        assert verdicts(app, "leak") == 1


async def test_a_compressed_answer_is_not_read_and_it_says_so():
    async def script(request, wire):
        choice = {"index": 0, "message": {"content": SECRET}, "finish_reason": "stop"}
        body = gzip.compress(json.dumps({**CHAT, "choices": [choice]}).encode())
        wire.write(answer(body, more=["Content-Encoding: gzip"]))

    async with scripted(BLOCK) as (app, engine):
        engine.script = script
        assert (await post(app, asking("What is new?")))[0] == 200
        assert verdicts(app, "unverifiable") == 1


@pytest.mark.parametrize("integrity", [BLOCK, FLAG, LEARNING])
async def test_a_clean_stream_passes_byte_for_byte(integrity):
    async with scripted(integrity) as (app, engine):
        text = 'A plain answer, with "quotes" and ünïcode. ' * 30
        engine.script = streamed(text)
        seen, ended_well = await stream(app, asking("What is new?"))
        assert ended_well
        assert seen == b"".join(events_of(text))
        assert verdicts(app, "ok") == 2


async def test_a_stream_that_was_held_for_nothing_goes_on_whole():
    """A quotation that is too short to mean anything holds the stream, and lets it go."""
    text = SECRET[:100] + " and then something else, which nobody sent. " + "More words. " * 30
    async with scripted(BLOCK) as (app, engine):
        engine.script = streamed(text, pause=0.001)
        seen, ended_well = await stream(app, asking("What is new?"))
        assert ended_well
        assert seen == b"".join(events_of(text))
        assert verdicts(app, "ok") == 2


async def test_ones_own_text_may_come_back():
    async with scripted(BLOCK) as (app, engine):
        engine.script = whole(SECRET)
        assert (await post(app, asking("Repeat it."), tenant="t0"))[0] == 200
        assert (await post(app, asking("Repeat: " + SECRET)))[0] == 200
        assert verdicts(app, "leak") == 0


async def test_what_two_tenants_sent_is_nobodys():
    async with scripted(BLOCK) as (app, engine):
        assert (await post(app, asking(SECRET), tenant="t1"))[0] == 200
        await remembered()
        engine.script = whole(SECRET)
        assert (await post(app, asking("What is new?")))[0] == 200


async def test_who_opted_out_is_not_remembered():
    tenants = {
        "tenants": [entry | {"fingerprint": entry["id"] != "t0"} for entry in KEYS["tenants"]]
    }
    async with scripted(BLOCK, tenants=tenants) as (app, engine):
        engine.script = whole(SECRET)
        assert (await post(app, asking("What is new?")))[0] == 200
        memory = app.generation.fingerprints.memories._by_backend["sim"]
        await remembered()
        assert memory.index.texts <= 2  # the asking tenant's own


async def test_public_text_is_no_finding(tmp_path):
    licence = tmp_path / "licence.txt"
    licence.write_text(SECRET)
    integrity = {**BLOCK, "fingerprints": BLOCK["fingerprints"] | {"public_text": [str(licence)]}}
    async with scripted(integrity) as (app, engine):
        engine.script = whole(SECRET)
        assert (await post(app, asking("What is new?")))[0] == 200


async def test_another_tenants_answer_is_found_too():
    """The class of a swapped or replayed answer: the same long text to two tenants."""
    text = " ".join(f"Step {n}: tighten bolt {n * 31} by a quarter turn." for n in range(20))
    async with scripted(BLOCK) as (app, engine):
        engine.script = whole(text)
        assert (await post(app, asking("How do I mend it?"), tenant="t1"))[0] == 200
        await remembered()
        status, _ = await post(app, asking("Tell me a story."))
        assert status == 502
        assert list(app.recorder.incidents)[-1]["finding"]["reason"] == "answer_run"


async def test_a_prompt_that_is_not_text_makes_a_finding_unverifiable():
    async with scripted(BLOCK) as (app, engine):
        engine.script = whole(SECRET)
        body = {"model": "m", "prompt": [[1, 2, 3]], "max_tokens": 4}
        assert (await post(app, body, path="/v1/completions"))[0] == 200
        assert verdicts(app, "unverifiable") == 1
        assert not app.recorder.incidents


async def test_a_short_secret_is_counted_and_passes():
    vin = "The car is 1HGCM82633A004352, please check."
    async with scripted(BLOCK, prompt=vin) as (app, engine):
        engine.script = whole("I read 1HGCM82633A004352 on the plate.")
        assert (await post(app, asking("Read the plate.")))[0] == 200
        assert (
            count(app, "poolgate_fingerprint_findings_total", backend="sim", strength="atom") == 1
        )
        assert (await post(app, asking("Is it 1hgcm82633a004352?")))[0] == 200
        assert (
            count(app, "poolgate_fingerprint_findings_total", backend="sim", strength="atom") == 1
        )


async def test_many_weak_findings_are_one_strong_one():
    async with scripted(BLOCK, prompt="Key: sk-proj-a8F3kL9x2Qw0") as (app, engine):
        engine.script = whole("Sure: sk-proj-a8F3kL9x2Qw0")
        for _ in range(7):
            assert (await post(app, asking("Any news?")))[0] == 200
        reasons = [incident["finding"]["reason"] for incident in app.recorder.incidents]
        assert reasons == ["finding_rate"]


async def test_memory_outlives_a_reload_under_the_same_key():
    async with scripted(BLOCK) as (app, engine):
        await app.reload(app.settings)
        engine.script = whole(SECRET)
        assert (await post(app, asking("What is new?")))[0] == 502
