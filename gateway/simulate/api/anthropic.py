"""``/v1/messages`` and ``/v1/messages/count_tokens``, Anthropic's dialect as SGLang speaks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from gateway.simulate import engine as pd
from gateway.simulate.api.service import (
    Body,
    Service,
    json_answer,
    named,
    read_body,
    request_id,
    send_events,
    service,
    whole_number,
)
from gateway.simulate.chats import from_anthropic
from gateway.simulate.engine import EngineRefusal

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "abort": "end_turn"}


async def messages(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    body = await read_body(request)
    here = service(request)
    limit = whole_number(body, "max_tokens", least=1)
    if limit is None:
        raise EngineRefusal("max_tokens: Field required")
    work = here.works(request_id(request, body), [await _prompt(request, body)], body, limit)
    streaming = bool(body.get("stream"))
    try:
        [sequence] = here.driver.open(work)
    except EngineRefusal as refusal:
        if not (streaming and refusal.in_stream):
            raise
        return await send_events(request, _refused(here, body, refusal))
    if streaming:
        return await send_events(request, _frames(here, body, sequence), [sequence])
    await here.driver.answer([sequence])
    text = here.tokeniser.decode(sequence.output)
    return json_answer(
        {
            **_message(here, body, [{"type": "text", "text": text}]),
            **_stop(sequence),
            "usage": _input_usage(sequence) | {"output_tokens": len(sequence.output)},
        }
    )


async def count_tokens(request: web.Request) -> web.StreamResponse:
    """Count a conversation's tokens without running it."""
    body = await read_body(request)
    return json_answer({"input_tokens": len(await _prompt(request, body))})


async def _prompt(request: web.Request, body: Body) -> list[int]:
    here = service(request)
    chat = from_anthropic(body, inline_system=here.tokeniser.inline_system)
    return await here.encode_chat(chat, request.content_length or 0)


def error_body(refusal: EngineRefusal) -> dict[str, Any]:
    """The refusal in the dialect's shape; a server's own trouble is not told."""
    if refusal.status >= 500:
        kind, message = "api_error", "Internal server error"
    else:
        kind, message = "BadRequestError", refusal.message
    return {"type": "error", "error": {"type": kind, "message": message}}


def _message(here: Service, body: Body, content: list[Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{here.new_id()}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": str(body.get("model") or here.settings.model),
    }


def _stop(sequence: pd.Sequence) -> dict[str, Any]:
    reason = STOP_REASONS.get(sequence.finish)
    return {"stop_reason": reason} if reason else {}


def _input_usage(sequence: pd.Sequence) -> dict[str, int]:
    """``input_tokens`` leaves cached ones out; those have a field where there are any."""
    cached = sequence.cached
    counts = {"input_tokens": len(sequence.work.prompt) - cached}
    return counts | {"cache_read_input_tokens": cached} if cached else counts


async def _frames(here: Service, body: Body, sequence: pd.Sequence) -> AsyncGenerator[bytes, None]:
    """message_start, one text block, message_delta, message_stop."""
    started = False
    try:
        async with aclosing(here.driver.deltas([sequence])) as deltas:
            async for delta in deltas:
                if not started:
                    started = True
                    for frame in _opening(here, body, sequence):
                        yield frame
                if delta.text:
                    yield named(
                        "content_block_delta",
                        {
                            "type": "content_block_delta",
                            "index": 0,
                            "delta": {"type": "text_delta", "text": delta.text},
                        },
                    )
    except EngineRefusal as refusal:
        async for frame in _refused(here, body, refusal):
            yield frame
        return
    yield named("content_block_stop", {"type": "content_block_stop", "index": 0})
    yield named(
        "message_delta",
        {
            "type": "message_delta",
            "delta": _stop(sequence),
            "usage": {"output_tokens": len(sequence.output)},
        },
    )
    yield named("message_stop", {"type": "message_stop"})


def _opening(here: Service, body: Body, sequence: pd.Sequence) -> list[bytes]:
    used = _input_usage(sequence) | {"output_tokens": 0}
    block = {"type": "text", "text": ""}
    return [
        _message_start(here, body, used),
        named(
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": block},
        ),
    ]


def _message_start(here: Service, body: Body, used: dict[str, int]) -> bytes:
    message = {**_message(here, body, []), "usage": used}
    return named("message_start", {"type": "message_start", "message": message})


async def _refused(
    here: Service, body: Body, refusal: EngineRefusal
) -> AsyncGenerator[bytes, None]:
    """A refusal after the status line: a whole, empty message with an error in it."""
    yield _message_start(here, body, {"input_tokens": 0, "output_tokens": 0})
    yield named("error", error_body(refusal))
    yield named("message_stop", {"type": "message_stop"})
