"""Answers of other requests, answers that are none, pages of other tenants."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from multidict import CIMultiDict

from fakes.raw_engine import CHAT, RawEngine, answer, chunk, delta, event, head
from gateway.core.spotcheck import AGREED
from gateway.simulate import INSTANT, Faults, SimulateSettings
from integration.conftest import gateway_and_engine, gateway_for, raw_call
from integration.faulty import (
    BODY,
    EMPTY,
    KEYS,
    OTHER,
)
from integration.test_checks import checked, raw_post, settled
from waiting import PATIENCE

# --- binding -----------------------------------------------------------------------------------


CALLS = [
    ("/v1/chat/completions", BODY),
    ("/v1/completions", {"model": "m", "prompt": "hello", "max_tokens": 4}),
    ("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 4}}),
    ("/v1/responses", {"model": "m", "input": "hello", "max_output_tokens": 4}),
]


def id_in(text):
    """The answer's id, wherever the dialect has it."""
    first = text.split(b"data: ")[1].splitlines()[0] if b"data: " in text else text
    value = json.loads(first)
    value = value.get("response", value)
    return value.get("id") or value["meta_info"]["id"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), CALLS)
async def test_every_swapped_answer_is_withheld(path, body, stream):
    sim = SimulateSettings(timing=INSTANT, faults=Faults(swap=True))
    async with gateway_and_engine(sim) as live:
        calls = [live.post(path, {**body, "stream": stream}) for _ in range(20)]
        replies = await asyncio.gather(*calls, live.post(path, {**body, "stream": stream}))
        swapped = [reply for reply in replies if reply[0] == 502]
        assert len(swapped) >= 10  # an answer that finds no other in time keeps its place
        for _, _, text in swapped:
            assert json.loads(text)["error"]["code"] == "response_withheld"
        for status, headers, text in replies:
            assert status == 502 or CIMultiDict(headers)["x-request-id"] in id_in(text)
        await settled(live.app, "binding", len(replies) - len(swapped))
        assert checked(live.app, "binding", "leak") == len(swapped)
        assert checked(live.app, "binding", "ok") == len(replies) - len(swapped) > 0


def message(words, **more):
    turn = {"role": "user", "content": " ".join(["hello"] * words)}
    return {"model": "m", "max_tokens": 4, "messages": [turn], **more}


@pytest.mark.parametrize("stream", [True, False])
async def test_where_ids_are_the_engines_own_swapped_answers_show_by_their_counts(stream):
    sim = SimulateSettings(timing=INSTANT, faults=Faults(swap=True))
    block = {"prompt_tokens": {"action": "block"}}
    async with gateway_and_engine(sim, integrity=block) as live:
        for words in range(AGREED):  # alone, none finds another to swap with
            status, _, _ = await live.post("/v1/messages", message(words + 1))
            assert status == 200
        calls = [message(10 * (place + 1), stream=stream) for place in range(20)]
        replies = await asyncio.gather(*(live.post("/v1/messages", call) for call in calls))
        kept = sum(
            status == 200 and b"response_withheld" not in text for status, _, text in replies
        )
        await settled(live.app, "prompt_tokens", AGREED + 20)
        assert live.engine.service.swapper.swapped == 20 - kept >= 10
        reasons = {incident["finding"]["reason"] for incident in live.app.recorder.incidents}
        assert reasons == {"anothers"}
        assert checked(live.app, "prompt_tokens", "ok") == AGREED + kept


async def test_an_echo_that_ceases_is_found():
    fast = {"limit": {"refresh": "20ms"}}
    async with RawEngine().running() as engine, gateway_for(engine.url, backend=fast) as app:

        async def echo(request, wire):
            wire.write(answer(json.dumps({**CHAT, "id": request.json["rid"]}).encode()))

        assert (await raw_post(app, BODY))[0] == 200  # never echoed: nothing is claimed
        engine.script = echo
        assert (await raw_post(app, BODY))[0] == 200
        engine.script = engine.answer_chat
        assert (await raw_post(app, BODY))[0] == 502
        [incident] = app.recorder.incidents
        assert incident["finding"]["reason"] == "id_lost"
        assert incident["evidence"] == "strong"
        engine.info = {"version": "0.5.24"}  # another process, which may be another engine
        async with asyncio.timeout(PATIENCE):
            while (await raw_post(app, BODY))[0] != 200:
                await asyncio.sleep(0.05)


async def test_a_swapped_stream_is_cut_before_its_first_event():
    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True))
        first = delta("foreign words").replace(b'"x"', json.dumps(OTHER).encode())
        for at in range(0, len(first), 7):  # the id comes in pieces
            wire.write(chunk(first[at : at + 7]))
            await asyncio.sleep(0)
        wire.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with RawEngine().running() as engine, gateway_for(engine.url) as app:
        engine.script = script
        seen = await raw_call(app, {**BODY, "stream": True})
        assert b" 502 " in seen.splitlines()[0]
        assert b"foreign" not in seen


# --- completeness ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), CALLS)
async def test_an_empty_success_is_an_error_to_the_client(path, body, stream):
    sim = SimulateSettings(timing=INSTANT, faults=Faults(empty200=True))
    async with gateway_and_engine(sim) as live:
        seen = await raw_call(live.app, {**body, "stream": stream}, path)
        failed = b" 502 " in seen.splitlines()[0]
        assert failed or not seen.endswith(b"0\r\n\r\n")
        assert b"[DONE]" not in seen
        assert b"response_withheld" in seen or b"upstream_error" in seen


RESPONSE = {"id": "resp_x", "object": "response", "status": "completed"}
END_AT_ONCE = {"usage": {"input_tokens": 10, "output_tokens": 1}}
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}
REASONED = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so"}]}
CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
NOTHING = {"usage": {"input_tokens": 10, "output_tokens": 0}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("members", "whole"),
    [
        ({"output": [], **NOTHING}, False),
        ({"output": []}, False),
        ({"output": [MESSAGE], **NOTHING}, False),
        ({"output": [], **END_AT_ONCE}, True),
        ({"output": [MESSAGE], **END_AT_ONCE}, True),
        ({"output": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, True),
        ({"output": [REASONED]}, True),
        ({"output": [], **NOTHING, **CUT}, True),
    ],
)
async def test_what_of_responses_is_an_empty_success(engine, members, whole, stream):
    async def script(request, wire):
        response = {**RESPONSE, **members}
        if not stream:
            wire.write(answer(json.dumps(response).encode()))
            return
        kind = f"response.{response['status']}"
        created = event({"type": "response.created", "response": {**RESPONSE, "status": "queued"}})
        wire.write(head(kind="text/event-stream", chunked=True) + chunk(created))
        wire.write(chunk(event({"type": kind, "response": response})) + chunk(b""))

    engine.script = script
    path, body = CALLS[3]
    async with gateway_for(engine.url) as app:
        seen = await raw_call(app, {**body, "stream": stream}, path)
        assert (b"response_withheld" not in seen) is whole
        ended = f"response.{members.get('status', 'completed')}".encode()
        assert (ended in seen) is (whole and stream)
        assert len(app.recorder.incidents) == (not whole)


@pytest.mark.parametrize(("action", "status"), [("flag", 200), ("block", 502)])
async def test_the_action_decides_whether_it_is(action, status):
    integrity = {"completeness": {"action": action}}
    async with RawEngine().running() as engine, gateway_for(engine.url, integrity=integrity) as app:
        engine.script = EMPTY
        assert (await raw_post(app, BODY))[0] == status
        [incident] = app.recorder.incidents
        assert (incident["kind"], incident["withheld"]) == ("completeness", status == 502)


# --- cached tokens -----------------------------------------------------------------------------


def story(number, count=400):
    return " ".join(f"chapter{number} line{n} tells of a{n * 7}" for n in range(count))


async def tell(live, tenant, text, **more):
    body = {**BODY, "messages": [{"role": "user", "content": text}], **more}
    return await live.post("/v1/chat/completions", body, headers={"x-api-key": tenant})


async def learnt(live):
    """Enough prompts of new text for the engine's reports to be believed."""
    for number in range(17):
        assert (await tell(live, "a", story(number, 60)))[0] == 200


ROOMY = {"timing": INSTANT, "context": 65_536, "prefill_pool": 65_536, "decode_pool": 65_536}


@pytest.mark.parametrize("stream", [True, False])
async def test_pages_of_another_tenant_show_in_cached_tokens(stream):
    sim = SimulateSettings(faults=Faults(salt=True), **ROOMY)
    integrity = {"cached_tokens": {"action": "block"}}
    async with gateway_and_engine(sim, integrity=integrity, **KEYS) as live:
        await learnt(live)
        secret = story("x")
        assert (await tell(live, "a", secret))[0] == 200
        assert (await tell(live, "a", secret + " and on"))[0] == 200  # its own pages
        try:
            status, _, _ = await tell(live, "b", secret, stream=stream)
            assert status == 502
        except aiohttp.ClientPayloadError:
            assert stream  # its end was withheld
        [incident] = live.app.recorder.incidents
        assert incident["kind"] == "cached_tokens"
        assert incident["evidence"] == "certain"
        assert incident["finding"]["returned"] > incident["finding"]["expected"]
        assert "chapter" not in json.dumps(incident)


@pytest.mark.parametrize("faults", [Faults(), Faults(cache_silent=True)])
async def test_an_engine_that_keeps_tenants_apart_or_says_so_is_not_accused(faults):
    integrity = {"cached_tokens": {"action": "block"}}
    sim = SimulateSettings(faults=faults, **ROOMY)
    async with gateway_and_engine(sim, integrity=integrity, **KEYS) as live:
        await learnt(live)
        for _ in range(2):
            for tenant in "ab":
                assert (await tell(live, tenant, story("x")))[0] == 200
        assert not len(live.app.recorder.incidents)
        await settled(live.app, "cached_tokens", 21)
        assert checked(live.app, "cached_tokens", "ok") == 21


@pytest.mark.parametrize(
    "changed", [{"salt_secret": "sixteen characters"}, {"cache_salt": "off"}], ids=str
)
async def test_nothing_is_claimed_where_others_may_share_the_salt(changed):
    async with gateway_and_engine(
        SimulateSettings(faults=Faults(salt=True), **ROOMY), backend=changed, **KEYS
    ) as live:
        await learnt(live)
        for tenant in "ab":
            assert (await tell(live, tenant, story("x")))[0] == 200
        for verdict in ("ok", "leak", "unverifiable"):
            assert checked(live.app, "cached_tokens", verdict) == 0


async def test_several_choices_share_pages_of_their_own():
    sim = SimulateSettings(faults=Faults(salt=True), **ROOMY)
    async with gateway_and_engine(sim, **KEYS) as live:
        await learnt(live)
        for tenant in "ab":
            assert (await tell(live, tenant, story("x"), n=2))[0] == 200
        await settled(live.app, "cached_tokens", 19)
        assert checked(live.app, "cached_tokens", "unverifiable") == 2


async def test_plain_prompts_may_hold_what_chats_render_so_their_tenant_is_not_judged():
    sim = SimulateSettings(faults=Faults(salt=True), **ROOMY)
    async with gateway_and_engine(sim, **KEYS) as live:
        await learnt(live)
        prompt = {"model": "m", "prompt": "raw", "max_tokens": 1}
        await live.post("/v1/completions", prompt, headers={"x-api-key": "b"})
        for tenant in "ab":
            assert (await tell(live, tenant, story("x")))[0] == 200
        await settled(live.app, "cached_tokens", 19)
        assert checked(live.app, "cached_tokens", "leak") == 0
        assert checked(live.app, "cached_tokens", "unverifiable") == 1


async def test_an_id_that_is_no_unicode_breaks_no_answer():
    async with RawEngine().running() as engine, gateway_for(engine.url) as app:
        whole = json.dumps({**CHAT, "id": "\ud800"}).encode()

        async def odd(request, wire):
            wire.write(answer(whole))

        engine.script = odd
        for _ in range(2):
            status, text, _ = await raw_post(app, BODY)
            assert (status, text) == (200, whole)
