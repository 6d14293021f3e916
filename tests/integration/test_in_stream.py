"""What an event in the middle of an open stream tells: a refusal and its limit, another id."""

from __future__ import annotations

import asyncio
import json

import pytest

from fakes.raw_engine import CHAT, answer, chunk, delta, event, head
from integration.conftest import begin, gateway_for, raw_call
from integration.faulty import BODY, OTHER
from integration.test_checks import checked, raw_post, settled
from waiting import PATIENCE

DONE = b"data: [DONE]\n\n"
LIMIT = 600  # what the engine names in refusals; it states 1,017
REFUSAL = (
    f"Input length (700 tokens) exceeds the maximum allowed length ({LIMIT} tokens). "
    "Use a shorter input or enable --allow-auto-truncate."
)
PROMPT = {"model": "m", "prompt": [1] * 700, "max_tokens": 4}
ASKED = {
    "/v1/chat/completions": BODY,
    "/v1/completions": {"model": "m", "prompt": "hi", "max_tokens": 4},
    "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 4}},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": BODY,
}


def reason(app):
    """Of the last incident."""
    return list(app.recorder.incidents)[-1]["finding"]["reason"]


def streamed(*events):
    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True))
        for one in events:
            wire.write(chunk(one))
        wire.write(chunk(b""))

    return script


def whole(value):
    async def script(request, wire):
        wire.write(answer(json.dumps(value).encode()))

    return script


# --- refusals ----------------------------------------------------------------------------------

ERROR = {"error": {"object": "error", "message": REFUSAL, "type": "BAD_REQUEST", "code": 400}}
ABORT = {"type": "abort", "message": REFUSAL, "status_code": 400, "err_type": "BadRequestError"}
NATIVE = {"text": "", "meta_info": {"id": "x", "prompt_tokens": 1, "finish_reason": ABORT}}
FAILED = {"type": "response.failed", "response": {"status": "failed", **ERROR}}
FLAT = {"type": "error", "message": REFUSAL, "code": "400", "param": None}
ANTHROPIC = {"type": "error", "error": {"type": "invalid_request_error", "message": REFUSAL}}


@pytest.mark.parametrize(
    ("path", "script"),
    [
        ("/v1/chat/completions", streamed(event(ERROR), DONE)),
        ("/v1/chat/completions", streamed(delta("well"), event(ERROR))),
        ("/v1/completions", streamed(event(ERROR), DONE)),
        ("/generate", streamed(event(NATIVE), DONE)),
        ("/generate", streamed(event(ERROR), DONE)),
        ("/generate", whole(NATIVE)),
        ("/v1/responses", streamed(event(FAILED))),
        ("/v1/responses", streamed(b"event: error\n" + event(FLAT))),
        ("/v1/messages", streamed(b"event: error\n" + event(ANTHROPIC))),
        ("/v1/chat/completions", whole(ERROR)),
        ("/v1/chat/completions", whole({"object": "error", "message": REFUSAL})),
    ],
)
async def test_a_refusal_inside_a_200_teaches_the_limit(engine, path, script):
    engine.script = script
    async with gateway_for(engine.url) as app:
        await raw_call(app, {**ASKED[path], "stream": True}, path)
        engine.script = engine.answer_chat
        status, refused, headers = await raw_post(app, PROMPT, "/v1/completions")
        assert (status, headers["x-poolgate-limit"]) == (400, str(LIMIT - 1))
        assert json.loads(refused)["error"]["code"] == "context_length_exceeded"
        assert len(engine.received) == 1


async def test_it_is_learnt_before_the_client_reads_of_it(engine):
    """The engine never ends its answer: the next request comes while the stream is open."""

    async def script(request, wire):
        wire.write(head(kind="text/event-stream", chunked=True) + chunk(event(ERROR)))

    engine.script = script
    async with gateway_for(engine.url) as app:
        reader, writer = await begin(app, {**BODY, "stream": True})
        await asyncio.wait_for(reader.readuntil(b"maximum allowed length"), PATIENCE)
        assert (await raw_post(app, PROMPT, "/v1/completions"))[0] == 400
        writer.close()


SPOKEN = json.dumps(ERROR)
TALK = {**CHAT, "choices": [{**CHAT["choices"][0], "message": {"content": SPOKEN}}]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "error", "arguments": SPOKEN}}


@pytest.mark.parametrize(
    ("path", "script"),
    [
        ("/v1/chat/completions", whole(TALK)),
        ("/v1/chat/completions", streamed(delta(REFUSAL), delta(SPOKEN, "stop"), DONE)),
        ("/v1/chat/completions", streamed(delta(f"\n\ndata: {SPOKEN}\n\n", "stop"), DONE)),
        # An engine that fails for another reason, after a model spoke of the refusal.
        ("/v1/chat/completions", streamed(delta(SPOKEN), event({"error": {"message": "no"}}))),
        (
            "/generate",
            whole({"text": SPOKEN, "meta_info": {"finish_reason": {**ABORT, "message": "no"}}}),
        ),
        (
            "/v1/chat/completions",
            whole({**CHAT, "choices": [{"message": {"tool_calls": [CALL]}, "finish_reason": "x"}]}),
        ),
    ],
)
async def test_no_model_teaches_a_limit(engine, path, script):
    engine.script = script
    async with gateway_for(engine.url) as app:
        await raw_call(app, {**ASKED[path], "stream": True}, path)
        engine.script = engine.answer_chat
        status, _, headers = await raw_post(app, PROMPT, "/v1/completions")
        assert (status, headers["x-poolgate-limit"]) == (200, "1017")


# --- the id of every event ---------------------------------------------------------------------

FOREIGN = b"foreign"


def with_id(value, response_id):
    return event({**value, "id": response_id})


def chat_event(response_id, text, finish=None):
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return with_id({"choices": [choice]}, response_id)


def text_event(response_id, text, finish=None):
    return with_id({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}, response_id)


def native_event(response_id, text, finish=None):
    reason = finish and {"type": finish}
    return event({"text": text, "meta_info": {"id": response_id, "finish_reason": reason}})


def response_event(response_id, text, finish=None):
    kind = "completed" if finish else "in_progress"
    output = [
        {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": text}]}
    ]
    response = {"id": response_id, "status": kind, "output": output}
    return event({"type": f"response.{kind}", "response": response})


def message_event(response_id, text, finish=None):
    if finish:
        return event({"type": "message_delta", "delta": {"stop_reason": finish}}) + event(
            {"type": "message_stop"}
        )
    block = {"type": "content_block_start", "index": 0, "content_block": {"text": text}}
    return event({"type": "message_start", "message": {"id": response_id}}) + event(block)


MAKERS = {
    "/v1/chat/completions": chat_event,
    "/v1/completions": text_event,
    "/generate": native_event,
    "/v1/responses": response_event,
    "/v1/messages": message_event,
}


def own_id(request):
    """The id we gave the request: in the body where the dialect has a field, else in the head."""
    body = request.json
    return body.get("rid") or body.get("request_id") or request.header("x-request-id")[0]


def spliced(make, foreign_id, cut):
    """Three own events, then another answer's, in two pieces cut at ``cut`` from the end."""

    async def script(request, wire):
        own = own_id(request)
        body = b"".join(make(own, f"own {n}") for n in range(3))
        body += make(foreign_id, FOREIGN.decode()) + make(foreign_id, "", "stop") + DONE
        wire.write(head(kind="text/event-stream", chunked=True))
        wire.write(chunk(body[:-cut]) + chunk(body[-cut:]) + chunk(b""))

    return script


@pytest.mark.parametrize("path", MAKERS)
async def test_an_answer_that_becomes_another_ones_is_cut_there(engine, path):
    make = MAKERS[path]
    async with gateway_for(engine.url) as app:
        longest = len(make(OTHER, FOREIGN.decode()) + make(OTHER, "", "stop") + DONE)
        for cut in range(1, longest + 2):  # at every byte of the foreign part
            engine.script = spliced(make, OTHER, cut)
            seen = await raw_call(app, {**ASKED[path], "stream": True}, path)
            assert FOREIGN not in seen
            assert b"response_withheld" in seen or b"upstream_integrity" in seen
            assert not seen.endswith(b"0\r\n\r\n") or b" 502 " in seen.splitlines()[0]
        assert checked(app, "binding", "leak") == longest + 1
        assert checked(app, "binding", "ok") == 0  # one verdict an answer
        assert reason(app) == "another_request"


@pytest.mark.parametrize("path", [path for path in MAKERS if path != "/v1/messages"])
async def test_an_echo_that_ceases_midway_is_found(engine, path):
    make = MAKERS[path]
    engine.script = spliced(make, "chatcmpl-1", 1)
    async with gateway_for(engine.url) as app:
        seen = await raw_call(app, {**ASKED[path], "stream": True}, path)
        assert FOREIGN not in seen
        assert reason(app) == "id_lost"


def of_ids(*ids, index=lambda place: 0):
    """A stream of events with these ids, the last one of which finishes."""
    parts = []
    for place, each in enumerate(ids):
        choice = {"index": index(place), "delta": {"content": "a"}, "finish_reason": None}
        if place >= len(ids) - 2:
            choice["finish_reason"] = "stop"
        parts.append(with_id({"choices": [choice]}, each))
    return streamed(*parts, DONE)


async def test_an_engine_with_ids_of_its_own_that_kept_to_one_is_held_to_that(engine):
    async with gateway_for(engine.url) as app:

        async def ask(*ids):
            engine.script = of_ids(*ids)
            return await raw_call(app, {**BODY, "stream": True})

        assert b"[DONE]" in await ask("a", "b", "c", "d")  # never seen to keep to one: no claim
        assert b"[DONE]" in await ask("a", "a", "a", "a")
        assert b"[DONE]" in await ask("", "b", "", "b")  # empty ids are none
        assert not len(app.recorder.incidents)
        assert b"[DONE]" not in await ask("e", "e", "f", "f")
        [incident] = app.recorder.incidents
        assert (incident["finding"]["reason"], incident["evidence"]) == ("id_changed", "strong")


async def test_several_choices_may_have_ids_of_their_own(engine):
    async with gateway_for(engine.url) as app:
        engine.script = of_ids("a", "a", "a", "a")
        await raw_call(app, {**BODY, "stream": True})  # one answer keeps to one
        engine.script = of_ids("a", "b", "a", "b", index=lambda place: place % 2)
        seen = await raw_call(app, {**BODY, "stream": True, "n": 2})
        assert b"[DONE]" in seen
        engine.script = of_ids("a", OTHER, "a", OTHER, index=lambda place: place % 2)
        seen = await raw_call(app, {**BODY, "stream": True, "n": 2})
        assert b"[DONE]" not in seen  # another request's is proof in any of them
        await settled(app, "binding", 2)
        assert len(app.recorder.incidents) == 1


async def test_an_engine_that_ends_without_a_blank_line_is_looked_at_too(engine):
    async def script(request, wire):
        own = own_id(request)
        wire.write(head(kind="text/event-stream", chunked=True))
        last = chat_event(OTHER, FOREIGN.decode(), "stop").rstrip() + b"\n"
        wire.write(chunk(chat_event(own, "own")) + chunk(last) + chunk(b""))

    engine.script = script
    async with gateway_for(engine.url) as app:
        assert FOREIGN not in await raw_call(app, {**BODY, "stream": True})
        assert reason(app) == "another_request"
