"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/embeddings``."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from gateway.simulate import engine as pd
from gateway.simulate.api.service import (
    DONE,
    Body,
    Prompt,
    Service,
    choice_count,
    data,
    finish_of,
    json_answer,
    matched_stop,
    metadata,
    read_body,
    request_id,
    send_events,
    service,
    stream_error,
    usage,
    whole_number,
)
from gateway.simulate.chats import from_openai
from gateway.simulate.driver import Delta
from gateway.simulate.engine import EngineRefusal

EMBEDDING_SIZE = 16
DEFAULT_COMPLETION_TOKENS = 16  # of /v1/completions, as in SGLang's protocol


@dataclass(frozen=True, slots=True)
class Call:
    """One completion request on its way, whichever of the two endpoints it came to."""

    service: Service
    body: Body
    rid: str
    prompts: Sequence[Prompt]
    choices: int
    works: Sequence[pd.Work]

    @property
    def model(self) -> str:
        """The model's name, echoed as the client gave it."""
        return str(self.body.get("model") or self.service.settings.model)

    @property
    def stream_options(self) -> Body:
        """The client's wishes for usage in streams."""
        return self.body.get("stream_options") or {}

    def envelope(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        """What answers and chunks have in common."""
        return {
            "id": self.rid,
            "object": kind,
            "created": self.service.now(),
            "model": self.model,
            "choices": choices,
        }

    def ending(self, sequence: pd.Sequence | None) -> dict[str, Any]:
        """The members that close a choice; all null while it goes on."""
        if sequence is None:
            return {"logprobs": None, "finish_reason": None, "matched_stop": None}
        return {
            "logprobs": None,
            "finish_reason": finish_of(sequence),
            "matched_stop": matched_stop(sequence, self.service.tokeniser),
        }


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    body = await read_body(request)
    prompt = await service(request).encode_chat(from_openai(body), request.content_length or 0)
    limit = whole_number(body, "max_completion_tokens", "max_tokens")
    call = _call(request, body, [prompt], limit)
    return await _respond(request, call, _chat_answer, _chat_frames)


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue one or more texts or token lists."""
    body = await read_body(request)
    prompts = await prompts_of(service(request), body.get("prompt"))
    limit = whole_number(body, "max_tokens", default=DEFAULT_COMPLETION_TOKENS)
    call = _call(request, body, prompts, limit)
    return await _respond(request, call, _text_answer, _text_frames)


def _call(request: web.Request, body: Body, prompts: Sequence[Prompt], limit: int | None) -> Call:
    here, rid, choices = service(request), request_id(request, body), choice_count(body)
    works = here.works(rid, prompts, body, limit, choices=choices)
    return Call(here, body, rid, prompts, choices, works)


async def prompts_of(here: Service, given: Any) -> list[Prompt]:
    """A ``prompt`` or ``input`` field as token lists. Raises EngineRefusal (400)."""
    if isinstance(given, str):
        return list(await here.encode([given]))
    if isinstance(given, list) and given:
        if all(isinstance(item, str) for item in given):
            return list(await here.encode(given))
        batch = given if isinstance(given[0], list) else [given]
        if all(_is_token_list(here, item) for item in batch):
            return batch
    raise EngineRefusal("prompt: text, token ids, or a list of either is required.")


def _is_token_list(here: Service, value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(token) is int and here.tokeniser.knows(token) for token in value)
    )


Answer = Callable[[Call, Sequence[pd.Sequence]], dict[str, Any]]
Frames = Callable[[Call, Sequence[pd.Sequence]], AsyncGenerator[bytes, None]]


async def _respond(
    request: web.Request, call: Call, answer: Answer, frames: Frames
) -> web.StreamResponse:
    """Run a call and send it whole, or as it comes."""
    driver, streaming = call.service.driver, bool(call.body.get("stream"))
    try:
        sequences = driver.open(call.works)
    except EngineRefusal as refusal:
        if not (streaming and refusal.in_stream):
            raise
        return await send_events(request, _refused(refusal))
    if streaming:
        return await send_events(request, _guarded(frames(call, sequences)), sequences)
    await driver.answer(sequences)
    return json_answer(answer(call, sequences))


async def _refused(refusal: EngineRefusal) -> AsyncGenerator[bytes, None]:
    """A refusal by the scheduler, which comes after the status line."""
    yield stream_error(refusal)
    yield DONE


async def _guarded(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(frames):
        try:
            async for frame in frames:
                yield frame
        except EngineRefusal as refusal:
            yield stream_error(refusal)
    yield DONE


def _chat_answer(call: Call, sequences: Sequence[pd.Sequence]) -> dict[str, Any]:
    decode = call.service.tokeniser.decode
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": decode(sequence.output),
                "reasoning_content": None,
            },
            **call.ending(sequence),
        }
        for index, sequence in enumerate(sequences)
    ]
    return {
        **call.envelope("chat.completion", choices),
        "usage": usage(sequences, call.choices),
        "metadata": metadata(sequences),
    }


async def _chat_frames(call: Call, sequences: Sequence[pd.Sequence]) -> AsyncGenerator[bytes, None]:
    """Role, text, finish; then usage where asked for."""
    begun: set[int] = set()
    async with aclosing(call.service.driver.deltas(sequences)) as deltas:
        async for delta in deltas:
            if delta.index not in begun:
                begun.add(delta.index)
                yield data(_chat_chunk(call, delta.index, {"role": "assistant", "content": ""}))
            sequence = sequences[delta.index]
            if delta.text:
                chunk = _chat_chunk(call, delta.index, {"content": delta.text})
                yield data(chunk | _running_usage(call, sequence))
            if delta.last:
                yield data(_chat_chunk(call, delta.index, {}, sequence))
    if call.stream_options.get("include_usage"):
        total = {"usage": usage(sequences, call.choices)}
        yield data(call.envelope("chat.completion.chunk", []) | total)


def _chat_chunk(
    call: Call, index: int, delta: dict[str, Any], ended: pd.Sequence | None = None
) -> dict[str, Any]:
    choice = {"index": index, "delta": {"reasoning_content": None, **delta}, **call.ending(ended)}
    return call.envelope("chat.completion.chunk", [choice])


def _running_usage(call: Call, sequence: pd.Sequence) -> dict[str, Any]:
    if not call.stream_options.get("continuous_usage_stats"):
        return {}
    return {"usage": usage([sequence], 1)}


def _text_answer(call: Call, sequences: Sequence[pd.Sequence]) -> dict[str, Any]:
    decode = call.service.tokeniser.decode
    choices = [
        {
            "index": index,
            "text": _echo(call, sequence) + decode(sequence.output),
            **call.ending(sequence),
        }
        for index, sequence in enumerate(sequences)
    ]
    return {
        **call.envelope("text_completion", choices),
        "usage": usage(sequences, call.choices),
        "metadata": metadata(sequences),
    }


def _echo(call: Call, sequence: pd.Sequence) -> str:
    return call.service.tokeniser.decode(sequence.work.prompt) if call.body.get("echo") else ""


async def _text_frames(call: Call, sequences: Sequence[pd.Sequence]) -> AsyncGenerator[bytes, None]:
    """Text, with the finish on each choice's last piece; then usage where asked for."""
    begun: set[int] = set()
    async with aclosing(call.service.driver.deltas(sequences)) as deltas:
        async for delta in deltas:
            echo = "" if delta.index in begun else _echo(call, sequences[delta.index])
            begun.add(delta.index)
            if delta.text or echo or delta.last:
                yield data(_text_chunk(call, delta, echo, sequences[delta.index]))
    if call.stream_options.get("include_usage"):
        total = usage(sequences, call.choices)
        del total["completion_tokens_details"]  # as captured: only chat's has it
        yield data(call.envelope("text_completion", []) | {"usage": total})


def _text_chunk(call: Call, delta: Delta, echo: str, sequence: pd.Sequence) -> dict[str, Any]:
    ended = sequence if delta.last else None
    choice = {"index": delta.index, "text": echo + delta.text, **call.ending(ended)}
    return {
        **call.envelope("text_completion", [choice]),
        "usage": None,
        **_running_usage(call, sequence),
    }


async def embeddings(request: web.Request) -> web.StreamResponse:
    """Small vectors that depend on the tokens alone. The pool's bound holds for them too."""
    body = await read_body(request)
    here = service(request)
    prompts = await prompts_of(here, body.get("input"))
    total = sum(map(len, prompts))
    for work in here.works(request_id(request, body), prompts, body, 0):
        here.driver.engine.check(work)
    return json_answer(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _vector(prompt)}
                for index, prompt in enumerate(prompts)
            ],
            "model": str(body.get("model") or here.settings.model),
            "usage": {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0},
        }
    )


def _vector(prompt: Prompt) -> list[float]:
    """A unit vector from the tokens' digest."""
    text = ",".join(map(str, prompt)).encode()
    raw = [byte - 127.5 for byte in hashlib.blake2b(text, digest_size=EMBEDDING_SIZE).digest()]
    norm = sum(value * value for value in raw) ** 0.5
    return [round(value / norm, 6) for value in raw]
