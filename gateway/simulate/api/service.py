"""What every endpoint needs: the body, the ids, the sequences, and how answers are sent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from aiohttp import web

from gateway.simulate import engine as pd
from gateway.simulate.api.swapping import Swapper
from gateway.simulate.driver import Driver
from gateway.simulate.settings import SimulateSettings
from gateway.simulate.tokeniser import Chat, Tokeniser

MOST_CHOICES = 128
LONG_TEXT = 200_000  # characters from which on tokenising leaves the event loop
Body = Mapping[str, Any]
Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class Service:
    """One engine behind its endpoints. ``wall_clock`` gives Unix seconds for ``created``;
    ``startup_seconds`` is how long loading took; ``swapper`` is there with that fault only.
    """

    settings: SimulateSettings
    tokeniser: Tokeniser
    driver: Driver
    ids: random.Random
    wall_clock: Callable[[], float]
    startup_seconds: float
    swapper: Swapper | None

    def new_id(self) -> str:
        """An id in the engine's own form: 32 hex digits."""
        return f"{self.ids.getrandbits(128):032x}"

    def now(self) -> int:
        """Unix seconds."""
        return int(self.wall_clock())

    async def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of plain texts, off the event loop where they are long."""
        if sum(map(len, texts)) < LONG_TEXT:
            return self.tokeniser.encode(texts)
        return await asyncio.to_thread(self.tokeniser.encode, texts)

    async def encode_chat(self, chat: Chat, size: int) -> list[int]:
        """Token ids of a conversation; ``size`` is its request's length in bytes."""
        if size < LONG_TEXT:
            return self.tokeniser.encode_chat(chat)
        return await asyncio.to_thread(self.tokeniser.encode_chat, chat)

    def works(
        self,
        rid: str,
        prompts: Sequence[Prompt],
        body: Body,
        limit: int | None,
        *,
        choices: int = 1,
    ) -> list[pd.Work]:
        """The sequences of a request: ``choices`` for each prompt, in SGLang's order."""
        base = rid
        if rid in self.driver.oracle.records or f"{rid}_0" in self.driver.oracle.records:
            base = f"{rid}#{self.driver.counters.requests}"
        single = len(prompts) * choices == 1
        salt = body.get("cache_salt") or ""
        extra = body.get("extra_key") or ""
        return [
            pd.Work(
                rid=rid,
                owner=base if single else f"{base}_{index}",
                prompt=prompt,
                max_new_tokens=limit,
                ignore_eos=bool(body.get("ignore_eos")),
                salt=f"{salt}\0{extra}",
            )
            for index, prompt in enumerate(p for p in prompts for _ in range(choices))
        ]


SERVICE = web.AppKey("service", Service)


def service(request: web.Request) -> Service:
    """The engine behind this request."""
    return request.app[SERVICE]


class _Turn(msgspec.Struct):
    """What any dialect's message must look like."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Fields(msgspec.Struct):
    """The kinds that structured fields must have where they are given; all else is free."""

    messages: list[_Turn] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    system: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    thinking: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    sampling_params: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None
    stream: bool | None = None


async def read_body(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request, counted as received. Raises EngineRefusal (400)."""
    raw = await request.read()
    service(request).driver.counters.requests += 1
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise pd.EngineRefusal(f"1 validation error:\n  JSON decode error: {error}") from None
    try:
        msgspec.convert(body, _Fields)
    except msgspec.ValidationError as error:
        raise pd.EngineRefusal(f"1 validation error:\n  {error}") from None
    return cast(dict[str, Any], body)


def request_id(request: web.Request, body: Body) -> str:
    """The client's id for this request (``rid``, else ``X-Request-Id``), else a new one."""
    rid = body.get("rid")
    if isinstance(rid, str) and rid:
        return rid
    return request.headers.get("X-Request-Id") or service(request).new_id()


def whole_number(body: Body, *names: str, default: int | None = None, least: int = 0) -> int | None:
    """The first of these fields that is set. Raises EngineRefusal if it is no such number."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise pd.EngineRefusal(f"{name} must be an integer of at least {least}.")
        return value
    return default


def choice_count(body: Body) -> int:
    """``n``: from 1 to MOST_CHOICES."""
    count = whole_number(body, "n", default=1, least=1) or 1
    if count > MOST_CHOICES:
        raise pd.EngineRefusal(f"n must be at most {MOST_CHOICES}.")
    return count


def json_answer(value: Any, status: int = 200) -> web.Response:
    """A JSON response."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def data(value: Any) -> bytes:
    """One server-sent event without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named(event: str, value: Any) -> bytes:
    """One named server-sent event."""
    return b"event: " + event.encode() + b"\n" + data(value)


DONE = b"data: [DONE]\n\n"


async def send_events(
    request: web.Request,
    frames: AsyncGenerator[bytes, None],
    sequences: Sequence[pd.Sequence] = (),
) -> web.StreamResponse:
    """Send frames as they come. ``sequences`` are over afterwards, also when the client left."""
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    try:
        if sequences and (swapper := service(request).swapper):
            own = frames, sequences
            frames, sequences = await swapper.exchange((request.path, "stream"), own)
        await response.prepare(request)
        async for frame in frames:
            await response.write(frame)
        await response.write_eof()
    except ConnectionError:
        pass  # the client has gone
    finally:
        await frames.aclose()
        service(request).driver.end(sequences)
    return response


# --- pieces of bodies -------------------------------------------------------------------------


def flat_error(refusal: pd.EngineRefusal, kind: str | None = None) -> dict[str, Any]:
    """SGLang's unwrapped error object."""
    broke = refusal.status >= 500
    return {
        "object": "error",
        "message": refusal.message,
        "type": kind or ("InternalServerError" if broke else "BadRequestError"),
        "param": None,
        "code": refusal.status,
    }


def stream_error(refusal: pd.EngineRefusal) -> bytes:
    """The same inside an open OpenAI stream."""
    kind = "INTERNAL_SERVER_ERROR" if refusal.status >= 500 else "BAD_REQUEST"
    return data({"error": flat_error(refusal, kind)})


def usage(sequences: Sequence[pd.Sequence], choices: int) -> dict[str, Any]:
    """OpenAI usage: a prompt counts once however many choices it has."""
    prompt = sum(len(sequence.work.prompt) for sequence in sequences[::choices])
    completion = sum(len(sequence.output) for sequence in sequences)
    cached = sum(sequence.cached for sequence in sequences[::choices])
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def finish_of(sequence: pd.Sequence) -> str | None:
    """``finish_reason``; none for the empty answer of a fault."""
    return None if sequence.finish == "empty" else sequence.finish


def matched_stop(sequence: pd.Sequence, tokeniser: Tokeniser) -> int | None:
    """The token that ended the answer, where one did."""
    return tokeniser.eos if sequence.finish == "stop" else None


def metadata(sequences: Sequence[pd.Sequence]) -> dict[str, Any]:
    """The weights an answer was made with; a simulated engine has one set."""
    end = len(sequences[0].output) if sequences else 0
    versions = [{"version": "default", "start": 0, "end": end}]
    return {"weight_version": "default", "weight_versions": versions}
