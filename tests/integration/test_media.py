"""Prompts with images: bounded within the limit they reach the engine, over it never."""

from __future__ import annotations

import base64
import json
import random
import re
import struct
from contextlib import asynccontextmanager

import aiohttp
import pytest

from fakes.raw_engine import CHAT, RawEngine, answer
from gateway.core.media import AROUND
from gateway.simulate import INSTANT, Faults, SimulateSettings, Vision
from integration.conftest import gateway_and_engine, gateway_for
from waiting import until

LIMIT = 2041  # of a prefill pool of 2048
QWEN = {"rule": "qwen_vl", "factor": 28, "min_pixels": 56 * 56, "max_pixels": 1280 * 28 * 28}
TEXT = {"type": "text", "text": "What is this?"}
REMOTE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}


def png(width, height):
    ihdr = b"\0\0\0\x0dIHDR" + struct.pack(">II", width, height) + b"\x08\x02\0\0\0crc "
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + ihdr + b"\0\0\0\0IDAT").decode()


def image(width, height):
    url = f"data:image/png;base64,{png(width, height)}"
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts, **more):
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


@asynccontextmanager
async def seeing(remote="refuse", **backend):
    sim = SimulateSettings(timing=INSTANT, prefill_pool=2048, vision=Vision())
    media = {"image": QWEN, "remote": remote}
    async with gateway_and_engine(sim, backend={"media": media, **backend}) as g:
        yield g


async def sent(live, body, path="/v1/chat/completions"):
    status, headers, raw = await live.post(path, {"max_tokens": 4, **body})
    return status, headers.get("x-poolgate-prompt-tokens"), json.loads(raw)


def sample(live, check, verdict):
    labels = {"check": check, "verdict": verdict}
    app = getattr(live, "app", live)
    return app.metrics.registry.get_sample_value("poolgate_checks_total", labels) or 0


BASE64 = {"type": "base64", "media_type": "image/png", "data": png(280, 560)}


@pytest.mark.parametrize("tokenizer", ["poolgate-tiny", "engine"])
@pytest.mark.parametrize(
    ("path", "body", "usage_field"),
    [
        ("/v1/chat/completions", chat(TEXT, image(280, 560)), "prompt_tokens"),
        ("/v1/chat/completions", chat(image(280, 560)), "prompt_tokens"),
        (
            "/v1/messages",
            chat(TEXT, {"type": "image", "source": BASE64}),
            "input_tokens",
        ),
    ],
)
async def test_an_image_within_the_limit_is_bounded(path, body, usage_field, tokenizer):
    async with seeing(tokenizer=tokenizer) as live:
        status, told, answered = await sent(live, body, path)
        assert status == 200, answered
        usage = answered["usage"][usage_field]
        assert told.startswith("<=")
        assert 200 < usage <= int(told[2:]) <= usage + AROUND + 8
        await until(lambda: sample(live, "prompt_tokens", "unverifiable") == 1)
        assert not sample(live, "prompt_tokens", "mismatch")


async def test_a_responses_image_is_bounded():
    part = {"type": "input_image", "image_url": image(280, 560)["image_url"]["url"]}
    async with seeing() as live:
        body = {"model": "m", "input": [{"role": "user", "content": [part]}]}
        status, headers, raw = await live.post("/v1/responses", body)
        assert status == 200, raw
        usage = json.loads(raw)["usage"]["input_tokens"]
        assert 200 < usage <= int(headers["x-poolgate-prompt-tokens"][2:])


async def test_no_usage_is_over_its_bound_and_nothing_over_the_limit_arrives():
    rng = random.Random(7)
    statuses, reasons = set(), set()
    async with seeing() as live:
        for _ in range(60):
            images = [
                image(*(rng.choice([1, 13, 28, 300, 900, 2500]) + rng.randrange(40) for _ in "wh"))
                for _ in range(rng.randrange(1, 4))
            ]
            words = {"type": "text", "text": "word " * rng.randrange(400)}
            parts = [*images, words]
            rng.shuffle(parts)
            before = live.engine.counters.requests
            status, told, answered = await sent(live, chat(*parts))
            statuses.add(status)
            if status == 200:
                usage = answered["usage"]["prompt_tokens"]
                assert usage <= int(told[2:]) <= LIMIT
            else:
                assert answered["error"]["code"] == "prompt_not_countable"
                reasons.add(re.search(r"\((\w+)\)", answered["error"]["message"])[1])
                assert live.engine.counters.requests == before
    assert statuses == {200, 400}
    assert reasons == {"media_over_bound", "image"}  # the latter for a strip without a bound


async def test_a_remote_image_is_kept_out_unless_the_operator_wants_it_fetched():
    async with seeing() as live:
        status, told, answered = await sent(live, chat(TEXT, REMOTE))
        assert (status, told) == (400, None)
        assert answered["error"]["code"] == "prompt_not_countable"
        assert live.engine.counters.requests == 0


async def test_a_remote_image_has_the_familys_maximum():
    async with seeing(remote="bound") as live:
        status, told, answered = await sent(live, chat(TEXT, REMOTE))
        assert status == 200
        assert 1280 + AROUND < int(told[2:]) < 1280 + AROUND + 40
        assert answered["usage"]["prompt_tokens"] <= int(told[2:])
        status, _, answered = await sent(live, chat(TEXT, REMOTE, REMOTE))
        assert status == 400
        assert answered["error"]["code"] == "prompt_not_countable"


@pytest.mark.parametrize(
    "body",
    [
        chat(TEXT, image(280, 560), mm_processor_kwargs={"max_pixels": 10**9}),
        chat(TEXT, {**image(280, 560), "max_pixels": 10**9}),
        chat(TEXT, image(280, 560), {"type": "video_url", "video_url": {"url": "https://e.com/v"}}),
        chat(TEXT, image(1, 300)),
        {"model": "m", "messages": [{"role": "assistant", "content": [image(280, 560)]}]},
    ],
)
async def test_what_no_rule_covers_has_the_configured_answer(body):
    async with seeing() as live:
        status, told, answered = await sent(live, body)
        assert (status, told) == (400, None)
        assert answered["error"]["code"] == "prompt_not_countable"
        assert live.engine.counters.requests == 0
    async with seeing(limit={"when_uncountable": "allow"}) as live:
        await sent(live, body)
        assert live.engine.counters.requests == 1


async def test_without_rules_an_image_is_not_countable():
    async with gateway_and_engine() as live:
        status, _, answered = await sent(live, chat(TEXT, image(280, 560)))
        assert status == 400
        assert "(image)" in answered["error"]["message"]


async def test_an_engine_above_the_bound_is_a_mismatch():
    """The operator's numbers are wrong, or the processor's are overridden on the engine."""

    async def costlier(request, wire):
        usage = {"prompt_tokens": 900, "completion_tokens": 1, "total_tokens": 901}
        wire.write(answer(json.dumps({**CHAT, "usage": usage}).encode()))

    async with RawEngine(limit=2000, context=9000).running() as engine:
        engine.script = costlier
        async with gateway_for(engine.url, backend={"media": {"image": QWEN}}) as app:
            reply = await raw_post(app, chat(TEXT, image(280, 560)))
            assert reply == 200
            await until(lambda: sample(app, "prompt_tokens", "mismatch") == 1)
            assert not app.recorder.incidents


async def raw_post(app, body):
    async with aiohttp.ClientSession() as http:
        async with http.post(app.data_url + "/v1/chat/completions", json=body) as reply:
            await reply.read()
            return reply.status


async def test_latency_is_not_judged_by_a_bound():
    """A remote image may be small: an answer faster than its bound would take is no finding."""
    integrity = {"latency": {"action": "hold"}}
    sim = SimulateSettings(timing=INSTANT, prefill_pool=1 << 15, context=1 << 15, vision=Vision())
    media = {"image": QWEN | {"max_pixels": 16_000_000}, "remote": "bound"}
    async with gateway_and_engine(sim, backend={"media": media}, integrity=integrity) as live:
        backend = live.app.generation.runtime.backends[0]
        for _ in range(50):  # long texts, so slow that nothing could be faster
            backend.prefill = backend.prefill.learned(12_000, 60.0)
        long = {"type": "text", "text": "word " * 4000}
        status, told, answered = await sent(live, chat(long, REMOTE))
        assert status == 200, answered
        assert int(told[2:]) > 20_000
        await until(lambda: sample(live, "prompt_tokens", "unverifiable") == 1)
        assert not live.app.recorder.incidents


async def test_a_calibration_that_lets_the_engine_count_bounds_images_too():
    """With a template that drifted, the engine is asked about the text, a stand-in in it."""
    sim = SimulateSettings(
        timing=INSTANT, prefill_pool=2048, vision=Vision(), faults=Faults(drift=True)
    )
    backend = {"media": {"image": QWEN}, "calibration": {"every": "1h"}}
    async with gateway_and_engine(sim, backend=backend) as live:
        calibrator = live.app.generation.runtime.backends[0].calibrator
        await until(lambda: calibrator.description()["counted_by"] == "engine")
        status, told, answered = await sent(live, chat(TEXT, image(280, 560)))
        assert status == 200, answered
        usage = answered["usage"]["prompt_tokens"]
        assert usage <= int(told[2:]) <= usage + AROUND + 8
