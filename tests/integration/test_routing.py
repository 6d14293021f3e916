"""The choice among a model's backends: by limit, by outstanding work, by what was there before."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256

import pytest

from fakes.raw_engine import CHAT, RawEngine, answer
from gateway.simulate import INSTANT, SimulateSettings, running
from integration.faulty import BODY, LONG, QUARANTINE, SWAPPED, admin, gateway_of, two_engines
from integration.test_checks import raw_post
from waiting import until

HUGE = {**BODY, "messages": [{"role": "user", "content": "word " * 3000}]}
AFFINE = {"policy": "affinity", "secret": "a-secret-of-sixteen-or-more"}


def chat(text, *later, **more):
    turns = [{"role": "user", "content": text}, *({"role": "user", "content": t} for t in later)]
    return {**BODY, "messages": turns, **more}


def error(text):
    return json.loads(text)["error"]


def counts(*engines):
    return [len(engine.received) for engine in engines]


def holding(gate):
    async def script(request, wire):
        await gate.wait()
        wire.write(answer(json.dumps(CHAT).encode()))

    return script


async def arrived(count, *engines):
    await until(lambda: sum(counts(*engines)) >= count)


# --- limits that differ ------------------------------------------------------------------------


@pytest.mark.parametrize("small_first", [True, False])
async def test_a_prompt_goes_where_it_fits_and_is_refused_only_where_it_fits_nowhere(small_first):
    async with RawEngine(limit=300, context=400).running() as small:
        async with RawEngine(limit=2000, context=3000).running() as large:
            engines = (small, large) if small_first else (large, small)
            async with gateway_of(*engines) as app:
                for sent in range(1, 4):
                    assert (await raw_post(app, LONG))[0] == 200
                    assert counts(small, large) == [0, sent]
                status, text, headers = await raw_post(app, HUGE)
                assert (status, error(text)["code"]) == (400, "context_length_exceeded")
                assert "1999" in error(text)["message"]  # the largest there is
                assert headers["x-poolgate-limit"] == "1999"
                assert counts(small, large) == [0, 3]


async def test_between_two_limits_every_length_is_where_it_fits(http):
    sizes = {"context": 8192, "decode_pool": 8192, "timing": INSTANT}
    async with running(SimulateSettings(prefill_pool=1024, **sizes)) as small:
        async with running(SimulateSettings(prefill_pool=2048, **sizes)) as large:
            async with gateway_of(small, large) as app:
                backends = {one.name: one for one in app.generation.runtime.backends}
                lower, upper = (backends[name].capacity().tokens for name in "ab")
                assert lower < upper

                async def sent(length):
                    body = {"model": "m", "prompt": [1500] * length, "max_tokens": 1}
                    async with http.post(app.data_url + "/v1/completions", json=body) as reply:
                        return reply.status, reply.headers["x-poolgate-limit"]

                for length in (lower - 1, lower, lower + 1, upper - 1, upper):
                    for _ in range(3):
                        status, limit = await sent(length)
                        assert status == 200
                        assert length <= int(limit)
                for length in (upper + 1, upper + 64, 8000):
                    assert await sent(length) == (400, str(upper))


async def test_a_prompt_too_long_for_all_alike_is_counted_once():
    async with two_engines() as (one, other), RawEngine(9000, 9000).running() as third:
        each = {name: {"tokenizer": "engine"} for name in "abc"}
        async with gateway_of(one, other, third, each=each) as app:
            for engine in (one, other, third):
                engine.counts = lambda _: 20_000
            assert (await raw_post(app, BODY))[0] == 400
            assert sum(len(engine.tokenized) for engine in (one, other, third)) == 1


async def test_tokenizers_may_differ_and_each_backend_counts_by_its_own():
    async with two_engines() as (one, other):
        async with gateway_of(one, other, each={"a": {"tokenizer": "engine"}}) as app:
            one.counts = lambda _: 20_000
            assert [(await raw_post(app, BODY))[0] for _ in range(3)] == [200] * 3
            assert counts(one, other) == [0, 3]


async def test_one_whose_limit_is_unknown_or_whose_count_fails_is_passed_over():
    async with two_engines() as (one, other), RawEngine().running() as silent:
        silent.answer_probes = False
        async with gateway_of(silent, one, other, each={"b": {"tokenizer": "engine"}}) as app:
            one.counts = lambda _: None
            assert [(await raw_post(app, BODY))[0] for _ in range(6)] == [200] * 6
            assert counts(silent, one, other) == [0, 0, 6]


async def test_a_count_that_is_asked_for_comes_from_one_that_can_count():
    async with two_engines() as (one, other):
        async with gateway_of(one, other, each={"a": {"tokenizer": "engine"}}) as app:
            one.counts = lambda _: None
            path = "/v1/messages/count_tokens"
            for _ in range(4):
                status, text, _ = await raw_post(app, BODY, path)
                assert status == 200
                assert json.loads(text)["input_tokens"] > 0


async def test_too_long_for_those_in_service_is_no_400_while_one_that_may_hold_it_is_out():
    async with RawEngine(limit=300, context=400).running() as small:
        async with RawEngine(limit=2000, context=3000).running() as large:
            async with gateway_of(small, large, integrity=QUARANTINE) as app:
                large.script = SWAPPED
                for _ in range(2):
                    await raw_post(app, BODY)
                status, text, _ = await raw_post(app, LONG)
                assert (status, error(text)["code"]) == (503, "backend_quarantined")
                assert (await raw_post(app, BODY))[0] == 200


async def test_a_tenants_own_limit_is_told_at_once():
    quotas = {"policies": {"default": {"max_prompt_tokens": 100}}}
    async with two_engines() as (one, other):
        each = {name: {"tokenizer": "engine"} for name in "ab"}
        async with gateway_of(one, other, each=each, **quotas) as app:
            one.counts = other.counts = lambda _: 500
            status, text, _ = await raw_post(app, BODY)
            assert status == 400
            assert "100" in error(text)["message"]
            assert len(one.tokenized) + len(other.tokenized) == 1


# --- outstanding work --------------------------------------------------------------------------


async def test_short_prompts_keep_clear_of_the_backend_that_prefills_a_long_one():
    gate = asyncio.Event()
    async with two_engines() as (one, other), gateway_of(one, other) as app:
        one.script = other.script = holding(gate)
        waiting = [asyncio.ensure_future(raw_post(app, LONG))]
        await arrived(1, one, other)
        for sent in range(4):
            waiting.append(asyncio.ensure_future(raw_post(app, BODY)))
            await arrived(2 + sent, one, other)
        assert sorted(counts(one, other)) == [1, 4]
        _, status = await admin(app, "/status")
        busy = {each["name"]: each["load"] for each in status["backends"]}
        assert max(load["prefilling"] for load in busy.values()) >= 600
        gate.set()
        assert [reply[0] for reply in await asyncio.gather(*waiting)] == [200] * 5
        _, status = await admin(app, "/status")
        idle = {"prefilling": 0, "decoding": 0}
        assert [each["load"] for each in status["backends"]] == [idle, idle]


async def test_a_reload_forgets_no_outstanding_work():
    gate = asyncio.Event()
    async with two_engines() as (one, other), gateway_of(one, other) as app:
        one.script = other.script = holding(gate)
        waiting = [asyncio.ensure_future(raw_post(app, LONG))]
        await arrived(1, one, other)
        await app.reload(app.settings)
        for sent in range(4):
            waiting.append(asyncio.ensure_future(raw_post(app, BODY)))
            await arrived(2 + sent, one, other)
        assert sorted(counts(one, other)) == [1, 4]
        gate.set()
        await asyncio.gather(*waiting)


async def test_idle_backends_take_turns():
    async with two_engines() as (one, other), gateway_of(one, other) as app:
        for _ in range(6):
            assert (await raw_post(app, BODY))[0] == 200
        assert counts(one, other) == [3, 3]


# --- affinity ----------------------------------------------------------------------------------


async def test_a_conversation_stays_where_its_prefix_is():
    async with two_engines() as (one, other), RawEngine(9000, 9000).running() as third:
        engines = one, other, third
        async with gateway_of(*engines, routing=AFFINE) as app:
            for number in range(12):
                before = counts(*engines)
                for turn in range(3):
                    assert (await raw_post(app, chat(f"chat {number}", *"xy"[:turn])))[0] == 200
                assert sorted(b - a for a, b in zip(before, counts(*engines), strict=True)) == [
                    0,
                    0,
                    3,
                ]
            assert min(counts(*engines)) > 0


async def test_gateways_with_one_secret_choose_alike_and_tenants_apart():
    tenants = [
        {"id": name, "key_sha256": [sha256(name.encode()).hexdigest()]} for name in ("t1", "t2")
    ]
    more = {"routing": AFFINE, "tenants": tenants}

    async def placed(app, engines, key):
        found = []
        for number in range(16):
            before = counts(*engines)
            reply = await raw_post(app, chat(f"chat {number}"), Authorization=f"Bearer {key}")
            assert reply[0] == 200
            found.append([a != b for a, b in zip(before, counts(*engines), strict=True)])
        return found

    async with two_engines() as engines:
        async with gateway_of(*engines, **more) as app, gateway_of(*engines, **more) as replica:
            first = await placed(app, engines, "t1")
            assert first == await placed(replica, engines, "t1")
            assert first != await placed(replica, engines, "t2")


async def test_a_session_header_keeps_different_prompts_together():
    routing = {**AFFINE, "session": "header"}
    async with two_engines() as (one, other), gateway_of(one, other, routing=routing) as app:
        for number in range(8):
            reply = await raw_post(app, chat(f"chat {number}"), **{"X-Session-Id": "s"})
            assert reply[0] == 200
        assert sorted(counts(one, other)) == [0, 8]
        assert all(not each.header("x-session-id") for each in one.received + other.received)


async def test_a_prefix_everyone_sends_overloads_nobody():
    gate = asyncio.Event()
    async with two_engines() as (one, other), gateway_of(one, other, routing=AFFINE) as app:
        one.script = other.script = holding(gate)
        waiting = []
        for sent in range(12):
            waiting.append(asyncio.ensure_future(raw_post(app, chat("one for all"))))
            await arrived(sent + 1, one, other)
        assert max(counts(one, other)) <= 1.25 * 6 + 1
        gate.set()
        await asyncio.gather(*waiting)


async def test_nothing_of_a_prompt_or_a_session_is_logged(caplog):
    async with two_engines() as (one, other), gateway_of(one, other, routing=AFFINE) as app:
        await raw_post(app, chat("LEAKMARK", user="LEAKMARK"), **{"X-Session-Id": "LEAKMARK"})
        _, status = await admin(app, "/status")
    assert "LEAKMARK" not in caplog.text + json.dumps(status)
