"""Our counts compared with the engine's own: what a difference does, and when it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest

from assets_at_hand import counter
from fakes.raw_engine import RawEngine
from gateway.core.calibration import State
from gateway.core.samples import samples
from gateway.simulate import INSTANT, Faults, SimulateSettings, running
from gateway.types import ChatPrompt, TextPrompt
from integration.conftest import gateway_and_engine, gateway_for
from waiting import until


def chat(words):
    """A chat of that many one-token words."""
    content = " ".join(["the"] * words)
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 4}


BODY = chat(1)
CHAT = "/v1/chat/completions"
DRIFTED = SimulateSettings(timing=INSTANT, faults=Faults(drift=True))
SOON = {"limit": {"refresh": "50ms"}}


def calibrated(**settings):
    return {"calibration": settings, **SOON}


def calibrator_of(app):
    return app.generation.runtime.backends[0].calibrator


async def first_calibration(app):
    await until(lambda: calibrator_of(app).found.at is not None)
    return calibrator_of(app).found


async def status_of(app):
    async with aiohttp.ClientSession() as http, http.get(app.admin_url + "/status") as answer:
        [backend] = (await answer.json())["backends"]
        return backend


async def metric_of(app, name):
    async with aiohttp.ClientSession() as http, http.get(app.admin_url + "/metrics") as answer:
        await answer.read()
    return app.metrics.registry.get_sample_value(name, {"backend": "sim"})


def verdicts(app):
    name, labels = "poolgate_checks_total", {"check": "prompt_tokens"}
    value = app.metrics.registry.get_sample_value
    return {v: value(name, {**labels, "verdict": v}) for v in ("ok", "mismatch", "unverifiable")}


async def post(app, body=BODY, path=CHAT):
    async with aiohttp.ClientSession() as http, http.post(app.data_url + path, json=body) as reply:
        return reply.status, dict(reply.headers), await reply.json()


# --- what a comparison shows ------------------------------------------------------------------


async def test_a_sound_engine_is_exact():
    async with gateway_and_engine(backend=calibrated()) as live:
        found = await first_calibration(live.app)
        assert found.state is State.EXACT
        assert found.compared > 30
        assert not live.engine.counters.prompt_lengths  # nothing was generated
        shown = (await status_of(live.app))["calibration"]
        assert (shown["state"], shown["counted_by"], shown["differences"]) == (
            "exact",
            "tokenizer",
            [],
        )
        assert await metric_of(live.app, "poolgate_calibration_state") == 1
        assert await metric_of(live.app, "poolgate_calibration_differences") == 0
        asked = live.engine.counters.requests
        assert asked <= len(tuple(samples())) + 20  # the others are discovery's
        await asyncio.sleep(0.3)  # several rounds: it is not asked again
        assert calibrator_of(live.app).found is found


async def test_a_difference_is_shown_by_name_and_never_by_text(caplog):
    caplog.set_level(logging.INFO, "gateway.edge.calibration")
    async with gateway_and_engine(DRIFTED, backend=calibrated(on_difference="ignore")) as live:
        await first_calibration(live.app)
        shown = (await status_of(live.app))["calibration"]
        assert shown["state"] == "differs"
        assert {"case": "openai_chat/user", "ours": 21, "theirs": 39} in shown["differences"]
        assert not any(one["case"].startswith("text/") for one in shown["differences"])
        assert shown["worst_under"]["tokens"] == 18
        assert await metric_of(live.app, "poolgate_calibration_state") == -1
        count = await metric_of(live.app, "poolgate_calibration_differences")
        assert count == len(shown["differences"])
        assert "river" not in json.dumps(shown)
    told = [record for record in caplog.records if record.name == "gateway.edge.calibration"]
    [line] = [record.getMessage() for record in told]
    assert "calibration differs" in line
    assert "river" not in line


async def test_off_asks_nothing():
    async with RawEngine().running() as engine:
        async with gateway_for(engine.url, backend=calibrated(every="0s")) as app:
            await asyncio.sleep(0.3)
            assert engine.tokenized == []
            assert (await status_of(app))["calibration"]["state"] == "unknown"
            assert await metric_of(app, "poolgate_calibration_state") == 0


async def test_a_backend_the_engine_counts_for_is_not_calibrated():
    async with gateway_and_engine(backend={**calibrated(), "tokenizer": "engine"}) as live:
        assert (await status_of(live.app))["calibration"] is None
        assert await metric_of(live.app, "poolgate_calibration_state") is None


# --- what a difference does -------------------------------------------------------------------


async def test_by_default_the_engine_counts_while_counts_differ():
    async with gateway_and_engine(DRIFTED, backend=calibrated()) as live:
        await first_calibration(live.app)
        assert (await status_of(live.app))["calibration"]["counted_by"] == "engine"
        status, headers, answer = await post(live.app)
        assert status == 200
        assert headers["x-poolgate-prompt-tokens"] == str(answer["usage"]["prompt_tokens"])
        await until(lambda: verdicts(live.app)["ok"] == 1)
        assert verdicts(live.app) == {"ok": 1, "mismatch": 0, "unverifiable": 0}


async def test_the_limit_is_exact_again_by_the_engines_count():
    async with gateway_and_engine(DRIFTED, backend=calibrated()) as live:
        await first_calibration(live.app)
        limit = live.app.generation.runtime.backends[0].capacity().tokens
        frame = (await post(live.app))[2]["usage"]["prompt_tokens"] - 1
        for words, expected in ((limit - frame, 200), (limit - frame + 1, 400)):
            status, headers, _ = await post(live.app, chat(words))
            assert status == expected, headers
        assert max(live.engine.counters.prompt_lengths) == limit


async def test_the_engine_taking_over_and_failing_is_a_503():
    async with RawEngine().running() as engine:
        engine.counts = lambda question: our_count(question) + 3
        async with gateway_for(engine.url, backend=calibrated()) as app:
            assert (await first_calibration(app)).state is State.DIFFERS
            engine.answer_probes = False
            for connection in engine.connections:
                connection.end()
            status, _, answer = await post(app)
            assert (status, answer["error"]["code"]) == (503, "count_unavailable")
            assert not [one for one in engine.received if CHAT in one.line]


async def test_a_margin_lowers_the_limit_and_counts_are_not_claimed():
    setting = calibrated(on_difference="margin")
    async with gateway_and_engine(DRIFTED, backend=setting) as live:
        full = live.engine.service.settings.max_prompt_tokens
        found = await first_calibration(live.app)
        worst = max((one.theirs - one.ours) / one.theirs for one in found.differences)
        [backend] = live.app.generation.runtime.backends
        kept = int(full * (1 - worst))
        assert kept - 1 <= backend.capacity().tokens <= kept
        assert backend.capacity().tokens == backend.capacity_for("m").tokens
        status, headers, answer = await post(live.app)
        assert status == 200
        ours = headers["x-poolgate-prompt-tokens"]
        assert ours.startswith("~")
        assert int(ours[1:]) == answer["usage"]["prompt_tokens"] - 18
        assert int(headers["x-poolgate-limit"]) == backend.capacity().tokens
        await until(lambda: verdicts(live.app)["unverifiable"] == 1)
        assert verdicts(live.app) == {"ok": 0, "mismatch": 0, "unverifiable": 1}
        ids = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 1}
        assert (await post(live.app, ids, "/v1/completions"))[1]["x-poolgate-prompt-tokens"] == "3"


async def test_a_configured_margin_holds_only_while_counts_differ():
    setting = calibrated(on_difference="margin", margin=8000)
    for sim, kept in ((DRIFTED, 8000), (SimulateSettings(timing=INSTANT), 0)):
        async with gateway_and_engine(sim, backend=setting) as live:
            full = live.engine.service.settings.max_prompt_tokens
            await first_calibration(live.app)
            assert live.app.generation.runtime.backends[0].capacity().tokens == full - kept


async def test_the_hard_rule_stays_under_a_margin():
    async with RawEngine(limit=5000, context=9000).running() as engine:
        engine.counts = lambda question: our_count(question) + 3
        async with gateway_for(engine.url, backend=calibrated(on_difference="margin")) as app:
            await first_calibration(app)
            await post(app, chat(400))
            await until(lambda: verdicts(app)["mismatch"] == 1)
            [incident] = app.recorder.incidents
            assert incident["finding"]["reason"] == "under_half"


async def test_refusing_is_a_503_until_it_is_exact_and_ids_pass():
    async with gateway_and_engine(DRIFTED, backend=calibrated(on_difference="refuse")) as live:
        await first_calibration(live.app)
        status, _, answer = await post(live.app)
        assert (status, answer["error"]["code"]) == (503, "count_unavailable")
        assert "counts_differ" in answer["error"]["message"]
        assert not live.engine.counters.prompt_lengths
        ids = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 1}
        assert (await post(live.app, ids, "/v1/completions"))[0] == 200


async def test_ignoring_changes_nothing_else():
    async with gateway_and_engine(DRIFTED, backend=calibrated(on_difference="ignore")) as live:
        await first_calibration(live.app)
        status, headers, answer = await post(live.app)
        assert status == 200
        assert int(headers["x-poolgate-prompt-tokens"]) == answer["usage"]["prompt_tokens"] - 18
        full = live.engine.service.settings.max_prompt_tokens
        assert int(headers["x-poolgate-limit"]) == full
        await until(lambda: verdicts(live.app)["mismatch"] == 1)


# --- an offset --------------------------------------------------------------------------------


@pytest.mark.parametrize("learn", [True, False])
async def test_a_constant_of_all_chats_is_learnt_where_allowed(learn):
    async with RawEngine(limit=1018).running() as engine:
        engine.counts = lambda question: our_count(question) + 7 * ("messages" in question)
        setting = calibrated(learn_offset=learn, on_difference="ignore")
        async with gateway_for(engine.url, backend=setting) as app:
            await first_calibration(app)
            shown = (await status_of(app))["calibration"]
            assert (shown["state"], shown["offset"]) == (("exact", 7) if learn else ("differs", 0))
            plain = counter(engine="sglang").count(ChatPrompt("openai_chat", BODY)).total
            _, headers, _ = await post(app)
            assert int(headers["x-poolgate-prompt-tokens"]) == plain + 7 * learn
            _, headers, _ = await post(app, {"model": "m", "prompt": "hello"}, "/v1/completions")
            text = counter(engine="sglang").count(TextPrompt(("hello",))).total
            assert int(headers["x-poolgate-prompt-tokens"].lstrip("<=")) == text
            limit = app.generation.runtime.backends[0].capacity().tokens
            longest = limit - plain + 1 - 7 * learn
            assert (await post(app, chat(longest)))[0] == 200
            assert (await post(app, chat(longest + 1)))[0] == 400


# --- when it is compared again ----------------------------------------------------------------


@asynccontextmanager
async def at_port(port, **changes):
    async with running(SimulateSettings(timing=INSTANT, **changes), port=port) as engine:
        yield engine


async def test_an_engine_that_restarts_without_the_drift_is_exact_again():
    async with at_port(0, faults=Faults(drift=True)) as engine:
        port = urlsplit(engine.url).port
        app_context = gateway_for(engine.url, backend=calibrated())
        app = await app_context.__aenter__()
        await first_calibration(app)
        assert (await status_of(app))["calibration"]["counted_by"] == "engine"
    try:
        async with at_port(port) as engine:
            await until(lambda: calibrator_of(app).found.state is State.EXACT)
            assert (await status_of(app))["calibration"]["counted_by"] == "tokenizer"
            _, headers, answer = await post(app)
            assert headers["x-poolgate-prompt-tokens"] == str(answer["usage"]["prompt_tokens"])
    finally:
        await app_context.__aexit__(None, None, None)


async def test_it_is_compared_again_in_time_and_whenever_the_process_is_another():
    async with RawEngine().running() as engine:
        engine.counts = our_count
        async with gateway_for(engine.url, backend=calibrated(every="1h")) as app:
            first = await first_calibration(app)
            assert first.state is State.EXACT
            engine.counts = lambda question: our_count(question) + 3
            await asyncio.sleep(0.3)
            assert calibrator_of(app).found is first  # the hour is not over
            engine.info = {"random_seed": 2}
            await until(lambda: calibrator_of(app).found.state is State.DIFFERS)
    async with RawEngine().running() as engine:
        engine.counts = our_count
        async with gateway_for(engine.url, backend=calibrated(every="100ms")) as app:
            assert (await first_calibration(app)).state is State.EXACT
            engine.counts = lambda question: our_count(question) + 3
            await until(lambda: calibrator_of(app).found.state is State.DIFFERS)


# --- what is no difference --------------------------------------------------------------------


async def test_an_engine_without_an_answer_is_no_difference():
    async with RawEngine().running() as engine:
        engine.counts = lambda question: None
        async with gateway_for(engine.url, backend=calibrated()) as app:
            assert (await first_calibration(app)).state is State.UNANSWERED
            shown = (await status_of(app))["calibration"]
            assert (shown["counted_by"], shown["differences"]) == ("tokenizer", [])
            assert await metric_of(app, "poolgate_calibration_state") == 0
            assert (await post(app))[0] == 200


async def test_an_engine_in_trouble_is_left_in_peace():
    async def busy(request, wire):
        wire.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    async with RawEngine().running() as engine:
        ordinary = engine.probe

        async def probe(request, wire):
            await (busy if "/tokenize" in request.line else ordinary)(request, wire)
            asked.append(request.line)

        asked = []
        engine.probe = probe
        async with gateway_for(engine.url, backend=calibrated()) as app:
            assert (await first_calibration(app)).state is State.UNANSWERED
            await asyncio.sleep(0.3)
            assert sum("/tokenize" in line for line in asked) == 3


async def test_one_that_fell_silent_is_asked_again_before_the_hour_is_over(monkeypatch):
    monkeypatch.setattr("gateway.edge.calibration.RETRY", 0.1)
    async with RawEngine().running() as engine:
        ordinary = engine.probe

        async def busy(request, wire):
            if "/tokenize" in request.line:
                wire.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            else:
                await ordinary(request, wire)

        engine.probe, engine.counts = busy, our_count
        async with gateway_for(engine.url, backend=calibrated()) as app:
            assert (await first_calibration(app)).state is State.UNANSWERED
            engine.probe = ordinary
            await until(lambda: calibrator_of(app).found.state is State.EXACT)


async def test_an_endpoint_that_counts_something_else_does_not_take_over():
    async with RawEngine().running() as engine:  # 10 tokens, whatever it is asked
        async with gateway_for(engine.url, backend=calibrated()) as app:
            assert not (await first_calibration(app)).credible
            shown = (await status_of(app))["calibration"]
            assert (shown["counted_by"], shown["engine_is_credible"]) == ("tokenizer", False)
            assert (await post(app, chat(2000)))[0] == 400


# --- beside the traffic -----------------------------------------------------------------------


async def test_requests_do_not_wait_for_a_comparison_and_it_asks_one_thing_at_a_time():
    async with RawEngine().running() as engine:
        ordinary, under_way, most = engine.probe, [], []

        async def slow(request, wire):
            if "/tokenize" in request.line:
                under_way.append(request)
                most.append(len(under_way))
                await asyncio.sleep(0.2)
                under_way.remove(request)
            await ordinary(request, wire)

        engine.probe = slow
        async with gateway_for(engine.url, backend=calibrated()) as app:
            await until(lambda: under_way)
            started = time.monotonic()
            status, headers, _ = await post(app)
            assert time.monotonic() - started < 1.0
            assert status == 200
            assert headers["x-poolgate-prompt-tokens"].isdigit()  # counted here, as before
            assert (await status_of(app))["calibration"]["state"] == "unknown"
            await asyncio.sleep(0.5)
        assert max(most) == 1


async def test_under_a_margin_a_first_comparison_that_is_not_over_is_said():
    async with RawEngine().running() as engine:
        engine.counts = lambda question: None
        ordinary = engine.probe

        async def never(request, wire):
            if "/tokenize" in request.line:
                await asyncio.sleep(60)
            await ordinary(request, wire)

        engine.probe = never
        async with gateway_for(engine.url, backend=calibrated(on_difference="margin")) as app:
            _, headers, _ = await post(app)
            assert headers["x-poolgate-prompt-tokens"].startswith("~")
            await until(lambda: verdicts(app)["unverifiable"] == 1)


def our_count(question):
    """What a sound SGLang would answer to a /tokenize question."""
    if "prompt" in question:
        prompt = TextPrompt((question["prompt"],))
    else:
        prompt = ChatPrompt("openai_chat", question)
    return counter(engine="sglang").count(prompt).total
