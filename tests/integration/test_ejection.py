"""Backends that fail: who is asked instead, who is left out, and how they come back (case 48)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO

import pytest

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, head
from integration.conftest import begin, raw_call
from integration.faulty import BODY, LONG, QUARANTINE, SWAPPED, admin, gateway_of, two_engines
from integration.test_actions import admin_metrics
from integration.test_checks import raw_post, sample
from waiting import PATIENCE, until

EJECTION = {"consecutive_failures": 3, "base_time": "60s", "max_time": "5m"}
ROUTING = {"ejection": EJECTION}
STREAM = {"kind": "text/event-stream", "chunked": True}


async def internal_error(request, wire):
    wire.write(answer(b'{"error": {"message": "out of memory"}}', status="500 Internal Error"))


async def broken(request, wire):
    wire.abort()


async def silent(request, wire):
    await asyncio.sleep(30)


async def codes(app, times, body=BODY):
    return [(await raw_post(app, body))[0] for _ in range(times)]


async def ejection(app, name):
    _, status = await admin(app, "/status")
    return next(one["ejection"] for one in status["backends"] if one["name"] == name)


async def shown(app):
    """The gauges, which are set at a scrape."""
    await admin_metrics(app)
    return [sample(app, "poolgate_backend_ejected", backend=name) for name in "ab"]


@asynccontextmanager
async def gone():
    """An engine that told its limit and is no more; its port refuses connections."""
    async with RawEngine(limit=9000, context=9000).running() as engine:

        def leave():
            engine._server.close()
            for connection in engine.connections:
                connection.end()

        engine.leave = leave
        yield engine


def let_its_time_pass(app, name):
    """As if the ejection were over: waiting for it would make the test depend on its own speed."""
    [past] = [one.past for one in app.generation.runtime.backends if one.name == name]
    past.health = replace(past.health, until=0.0)


# --- asked elsewhere ---------------------------------------------------------------------------


async def test_row_48_what_was_never_sent_goes_elsewhere_once():
    log = BytesIO()
    quotas = {"policies": {"default": {"requests_per_minute": 10}}}
    async with gone() as one, RawEngine(limit=9000, context=9000).running() as other:
        async with gateway_of(one, other, log=log, **quotas) as app:
            one.leave()
            await asyncio.sleep(0.05)
            status, text, headers = await raw_post(app, BODY)
            assert (status, json.loads(text)["choices"][0]["message"]["content"]) == (200, "hello")
            assert headers["x-ratelimit-remaining-requests"] == "9"  # charged once
            assert (len(one.received), len(other.received)) == (0, 1)
            assert sample(app, "poolgate_connect_retries_total", backend="a") == 1
            assert sample(app, "poolgate_withheld_retries_total", backend="a") == 0
    [line] = [json.loads(each) for each in log.getvalue().splitlines()]
    assert (line["backend"], line["unreachable_at"], line["withheld_at"]) == ("b", "a", None)


async def test_row_48_where_nobody_can_be_reached_it_is_tried_twice_and_told():
    async with gone() as one, gone() as other, gone() as third:
        async with gateway_of(one, other, third) as app:
            for engine in (one, other, third):
                engine.leave()
            await asyncio.sleep(0.05)
            status, text, headers = await raw_post(app, BODY)
            assert (status, json.loads(text)["error"]["code"]) == (503, "upstream_unavailable")
            assert headers["Retry-After"] == "1"
            _, told = await admin(app, "/status")
            failures = [one["ejection"]["failures_in_a_row"] for one in told["backends"]]
            assert sorted(failures) == [0, 1, 1]


@pytest.mark.parametrize("script", [broken, internal_error, silent])
async def test_row_48_what_may_have_been_processed_is_never_sent_again(script):
    async with two_engines() as (one, other):
        timeouts = {"first_byte": "200ms"}
        async with gateway_of(one, other, timeouts=timeouts) as app:
            one.script = other.script = script
            assert (await raw_post(app, BODY))[0] in (500, 502, 504)
            assert len(one.received) + len(other.received) == 1


async def test_the_other_must_admit_what_could_not_be_sent():
    async with gone() as one, RawEngine(limit=300, context=400).running() as small:
        async with gateway_of(one, small) as app:
            one.leave()
            await asyncio.sleep(0.05)
            status, text, _ = await raw_post(app, LONG)
            assert (status, json.loads(text)["error"]["code"]) == (503, "upstream_unavailable")
            assert small.received == []


# --- ejection ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [(internal_error, "status"), (broken, "broke"), (silent, "timeout")],
)
async def test_failures_in_a_row_eject_and_a_trial_brings_back(script, reason):
    async with two_engines() as (one, other):
        more = {"routing": ROUTING, "timeouts": {"first_byte": "2s"}}
        async with gateway_of(one, other, **more) as app:
            one.script = script
            await codes(app, 6)
            assert (len(one.received), len(other.received)) == (3, 3)
            told = await ejection(app, "a")
            assert (told["state"], told["reason"], told["ejections"]) == ("ejected", reason, 1)
            assert await shown(app) == [1, 0]
            assert sample(app, "poolgate_ejections_total", backend="a", reason=reason) == 1
            assert await codes(app, 3) == [200] * 3
            assert len(one.received) == 3

            let_its_time_pass(app, "a")
            assert (await ejection(app, "a"))["state"] == "half_open"
            assert await shown(app) == [1, 0]
            await codes(app, 4)  # its trial fails, and it is out for longer
            assert len(one.received) == 4
            assert (await ejection(app, "a"))["ejections"] == 2
            one.script = one.answer_chat
            let_its_time_pass(app, "a")
            assert await codes(app, 4) == [200] * 4
            assert len(one.received) >= 6
            assert (await ejection(app, "a"))["state"] == "in_service"
            assert await shown(app) == [0, 0]


async def test_a_trial_is_one_request_and_others_do_not_wait_for_it():
    async with two_engines() as (one, other):
        async with gateway_of(one, other, routing=ROUTING) as app:
            one.script = internal_error
            await codes(app, 6)
            held = asyncio.Event()

            async def slow(request, wire):
                await held.wait()
                wire.write(answer(json.dumps(CHAT).encode()))

            one.script = slow
            let_its_time_pass(app, "a")
            trials = [asyncio.ensure_future(raw_post(app, BODY)) for _ in range(2)]
            await until(lambda: len(one.received) >= 4)
            assert await codes(app, 6) == [200] * 6
            assert len(one.received) == 4
            held.set()
            assert [reply[0] for reply in await asyncio.gather(*trials)] == [200, 200]
            assert (await ejection(app, "a"))["state"] == "in_service"


async def test_a_models_only_backend_is_never_left_out():
    async with RawEngine().running() as engine:
        routing = {"ejection": EJECTION | {"max_share": 1.0}}
        async with gateway_of(engine, routing=routing) as app:
            engine.script = internal_error
            assert await codes(app, 8) == [500] * 8
            assert len(engine.received) == 8
            told = await ejection(app, "a")
            assert (told["state"], told["failures_in_a_row"]) == ("in_service", 8)


async def test_where_both_fail_one_is_kept():
    async with two_engines() as (one, other):
        routing = {"ejection": EJECTION | {"max_share": 1.0}}
        async with gateway_of(one, other, routing=routing) as app:
            one.script = other.script = internal_error
            assert await codes(app, 12) == [500] * 12
            states = [(await ejection(app, name))["state"] for name in "ab"]
            assert sorted(states) == ["ejected", "in_service"]


async def test_answers_between_failures_and_clients_that_leave_eject_nobody():
    async with two_engines() as (one, other):
        async with gateway_of(one, other, routing=ROUTING) as app:
            good, bad = one.answer_chat, internal_error
            for script in (bad, bad, good, bad, bad, good):
                one.script = script
                await codes(app, 2)
            assert (await ejection(app, "a"))["failures_in_a_row"] == 0
            one.script = other.script = silent
            for _ in range(8):
                _, writer = await begin(app, BODY)
                await asyncio.sleep(0.03)
                writer.transport.abort()
            await asyncio.sleep(0.1)
            for name in "ab":
                assert (await ejection(app, name))["failures_in_a_row"] == 0


async def test_streams_that_break_in_the_middle_count():
    async def breaks(request, wire):
        wire.write(head(**STREAM) + chunk(delta("a")) + chunk(delta("b")))
        await asyncio.sleep(0.05)
        wire.abort()

    async with two_engines() as (one, other):
        async with gateway_of(one, other, routing=ROUTING) as app:
            one.script = breaks
            for _ in range(6):
                await raw_call(app, {**BODY, "stream": True})
            assert (await ejection(app, "a"))["state"] == "ejected"


async def test_a_refusal_of_the_request_is_no_failure():
    async def refuses(request, wire):
        status = ("400 Bad Request", "429 Too Many Requests", "501 Not Implemented")
        wire.write(answer(b"{}", status=status[len(one.received) % 3]))

    async with RawEngine().running() as one, RawEngine().running() as other:
        async with gateway_of(one, other, routing=ROUTING) as app:
            one.script = refuses
            await codes(app, 18)
            assert len(one.received) == 9


async def test_the_ejected_beside_the_quarantined_answer_503_and_say_when():
    async with two_engines() as (one, other):
        more = {"routing": ROUTING, "integrity": QUARANTINE}
        async with gateway_of(one, other, **more) as app:
            one.script = internal_error
            await codes(app, 6)
            other.script = SWAPPED
            await raw_post(app, BODY)
            # The quarantine's own cap counts only the quarantined: b is the first of two.
            status, text, headers = await raw_post(app, BODY)
            assert (status, json.loads(text)["error"]["code"]) == (503, "backend_ejected")
            assert 1 <= int(headers["Retry-After"]) <= 60
            assert f"in {headers['Retry-After']} s" in json.loads(text)["error"]["message"]
            assert sample(app, "poolgate_rejections_total", reason="backend_ejected") == 1


async def test_an_ejection_outlives_a_reload():
    async with two_engines() as (one, other):
        async with gateway_of(one, other, routing=ROUTING) as app:
            one.script = internal_error
            await codes(app, 6)
            await app.reload(app.settings)
            assert (await ejection(app, "a"))["state"] == "ejected"
            assert await codes(app, 3) == [200] * 3


async def test_an_ejection_can_be_turned_off():
    async with two_engines() as (one, other):
        routing = {"ejection": {"consecutive_failures": 0}}
        async with gateway_of(one, other, routing=routing) as app:
            one.script = internal_error
            await codes(app, 20)
            assert len(one.received) == 10


# --- deadlines of the first byte ----------------------------------------------------------------


def after(seconds, *, early=False):
    """A stream that begins after so long, its head at once where ``early``."""

    async def script(request, wire):
        if early:
            wire.write(head(**STREAM))
        await asyncio.sleep(seconds)
        wire.write((b"" if early else head(**STREAM)) + chunk(delta("a", "stop")))
        wire.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    return script


@pytest.mark.parametrize("early", [True, False])
async def test_the_first_bytes_deadline_grows_with_the_prompt(early):
    async with RawEngine(limit=9000, context=9000).running() as engine:
        engine.script = after(0.5, early=early)
        timeouts = {"first_byte": "200ms", "first_byte_per_1k_tokens": "10s", "idle": "100ms"}
        async with gateway_of(engine, timeouts=timeouts) as app:
            status, text, _ = await raw_post(app, {**BODY, "stream": True})
            assert status == 504
            assert "(first byte)" in json.loads(text)["error"]["message"]
            assert (await raw_post(app, {**LONG, "stream": True}))[0] == 200


async def test_the_head_of_an_answer_does_not_pass_for_its_first_byte():
    async with RawEngine().running() as engine:
        engine.script = after(PATIENCE, early=True)
        async with gateway_of(engine, timeouts={"first_byte": "200ms", "idle": "1m"}) as app:
            assert (await raw_post(app, {**BODY, "stream": True}))[0] == 504
