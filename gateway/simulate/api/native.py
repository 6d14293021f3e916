"""SGLang's own endpoints: ``/generate``, ``/tokenize``, ``/flush_cache``, ``/abort_request``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from gateway.simulate import engine as pd
from gateway.simulate.api.openai import prompts_of
from gateway.simulate.api.service import (
    DONE,
    Body,
    Prompt,
    Service,
    choice_count,
    data,
    json_answer,
    matched_stop,
    read_body,
    request_id,
    send_events,
    service,
    whole_number,
)
from gateway.simulate.chats import from_openai
from gateway.simulate.engine import EngineRefusal

DEFAULT_NEW_TOKENS = 128


async def generate(request: web.Request) -> web.StreamResponse:
    """Continue texts or token lists; one prompt gives an object, a list gives a list."""
    body = await read_body(request)
    here = service(request)
    prompts, batch = await _prompts(here, body)
    sampling = body.get("sampling_params") or {}
    limit = whole_number(sampling, "max_new_tokens", default=DEFAULT_NEW_TOKENS)
    choices = choice_count(sampling)
    works = here.works(request_id(request, body), prompts, body | sampling, limit, choices=choices)
    batch = batch or len(works) > 1
    streaming = bool(body.get("stream"))
    try:
        sequences = here.driver.open(works)
    except EngineRefusal as refusal:
        if not (streaming and refusal.in_stream):
            raise
        return await send_events(request, _refused(refusal))
    if streaming:
        return await send_events(request, _frames(here, sequences, batch), sequences)
    await here.driver.answer(sequences)
    answers = [_answer(here, sequence) for sequence in sequences]
    return json_answer(answers if batch else answers[0])


async def _prompts(here: Service, body: Body) -> tuple[list[Prompt], bool]:
    """The prompts, and whether they came as a batch. Raises EngineRefusal (400)."""
    given = [body.get(name) for name in ("text", "input_ids") if body.get(name) is not None]
    if len(given) != 1:
        raise EngineRefusal("Either text or input_ids should be provided.")
    [prompt] = given
    batch = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    return await prompts_of(here, prompt), batch


def error_body(refusal: EngineRefusal) -> dict[str, Any]:
    """The native endpoint's error."""
    return {"error": {"message": refusal.message}}


async def _refused(refusal: EngineRefusal) -> AsyncGenerator[bytes, None]:
    kind = "invalid_request_error" if refusal.status < 500 else "internal_error"
    yield data(
        {
            "error": {
                "message": refusal.message,
                "type": kind,
                "code": refusal.status,
                "retryable": False,
            }
        }
    )
    yield DONE


async def _frames(
    here: Service, sequences: Sequence[pd.Sequence], batch: bool
) -> AsyncGenerator[bytes, None]:
    """Each event repeats the whole text so far."""
    texts = [""] * len(sequences)
    try:
        async with aclosing(here.driver.deltas(sequences)) as deltas:
            async for delta in deltas:
                texts[delta.index] += delta.text
                chunk = _answer(here, sequences[delta.index], texts[delta.index], delta.last)
                yield data(chunk | {"index": delta.index} if batch else chunk)
    except EngineRefusal as refusal:
        async for frame in _refused(refusal):
            yield frame
        return
    yield DONE


def _answer(
    here: Service, sequence: pd.Sequence, text: str | None = None, ended: bool = True
) -> dict[str, Any]:
    text = here.tokeniser.decode(sequence.output) if text is None else text
    return {
        "text": text,
        "output_ids": sequence.output,
        "meta_info": {
            "id": sequence.work.rid,
            "finish_reason": _finish(here, sequence) if ended else None,
            "prompt_tokens": len(sequence.work.prompt),
            "weight_version": "default",
            "completion_tokens": len(sequence.output),
            "cached_tokens": sequence.cached,
            "dp_rank": None,
        },
    }


def _finish(here: Service, sequence: pd.Sequence) -> dict[str, Any] | None:
    if sequence.finish == "stop":
        return {"type": "stop", "matched": matched_stop(sequence, here.tokeniser)}
    if sequence.finish == "length":
        return {"type": "length", "length": len(sequence.output)}
    if sequence.finish == "abort":
        return {"type": "abort", "message": "Aborted"}
    return None


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Token ids of a prompt, of several, or of a conversation."""
    body = await read_body(request)
    here = service(request)
    prompt = body.get("prompt")
    if (prompt is None) == (body.get("messages") is None):
        raise EngineRefusal("Exactly one of 'prompt' or 'messages' must be provided.")
    special = body.get("add_special_tokens", True) is not False
    tokens: list[Any]
    count: int | list[int]
    if prompt is None:
        chat = from_openai(body, generation_prompt=body.get("add_generation_prompt"))
        tokens = await here.encode_chat(chat, request.content_length or 0)
        count = len(tokens)
    elif isinstance(prompt, str):
        [tokens] = here.tokeniser.encode([prompt], add_special_tokens=special)
        count = len(tokens)
    elif isinstance(prompt, list) and all(isinstance(text, str) for text in prompt):
        tokens = here.tokeniser.encode(prompt, add_special_tokens=special)
        count = list(map(len, tokens))
    else:
        raise EngineRefusal("Invalid prompt type. Expected str or List[str].")
    return json_answer(
        {"tokens": tokens, "count": count, "max_model_len": here.tokeniser.model_max_length}
    )


async def flush_cache(request: web.Request) -> web.StreamResponse:
    """Drop the prefix cache; refused while anything runs."""
    here = service(request)
    if here.driver.running:
        return web.Response(status=400, text="Flush cache failed.\n")
    here.driver.engine.cache.flush()
    return web.Response(text="Cache flushed.\n")


async def abort_request(request: web.Request) -> web.StreamResponse:
    """End one request, or all of them, at its next step."""
    body = await read_body(request)
    rid = body.get("rid")
    if body.get("abort_all"):
        service(request).driver.abort(None)
    elif isinstance(rid, str) and rid:
        service(request).driver.abort(rid)
    return web.Response()
