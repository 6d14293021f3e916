"""Callers: each makes one call after another, and tells for certain how each ended."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Any

from benchmarks.soak import wire
from benchmarks.soak.answers import foreign, is_whole
from benchmarks.soak.engine import asked_for
from benchmarks.soak.plan import FORBIDDEN, LIMIT_TOKENS, MAX_BODY, MODEL, Call, Kind, Moment

CHAT = "/v1/chat/completions"
PATIENCE = 60.0  # seconds: whoever waits for longer has found a hang
MAX_OUTPUT = 200  # tokens
_WORDS = (
    "harbour", "lamp", "keeper", "tide", "market", "bread", "net", "mill", "bridge", "winter",
    "flour", "river", "school", "window", "loaf", "map", "clock", "noon", "bell", "ladder",
)  # fmt: skip


class Ending(StrEnum):
    """How a call ended, as its caller saw it."""

    COMPLETE = "complete"  # whole by HTTP, by the dialect and by the text's own word
    REFUSED = "refused"  # an error answer, whole
    CUT = "cut"  # an answer began and visibly did not end
    HOLLOW = "hollow"  # looks complete and is not
    UNANSWERED = "unanswered"  # not a byte
    LEFT = "left"  # the caller hung up


@dataclass(frozen=True, slots=True)
class Seen:
    """One call's end. Times are monotonic seconds; ``code`` is that of an error body."""

    call: Call
    ending: Ending
    began: float
    ended: float
    status: int = 0
    code: str = ""
    foreign: bool = False
    request_id: str = ""
    told: bool = False  # a cut stream said why in an error event
    inherited: bool = False  # it came over a connection that had served another call

    @property
    def outcome(self) -> str:
        """In words that the judge compares."""
        refused = self.ending is Ending.REFUSED
        return f"{self.status} {self.code}" if refused else str(self.ending)


class Caller:
    """Makes calls over a connection that it keeps for as long as the gateway does."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self.repeated = 0  # calls made anew since a kept connection did not take them
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def make(self, call: Call) -> Seen:
        """One call to its end; made anew where a kept connection did not take it, as HTTP says."""
        while True:
            if self._line is not None and self._line[0].at_eof():
                self.hang_up()  # closed meanwhile: no client would use it
            inherited = self._line is not None
            seen = await self._make(call, inherited)
            if not (inherited and seen.ending is Ending.UNANSWERED):
                return seen
            self.repeated += 1

    def hang_up(self) -> None:
        """Close the connection it keeps."""
        if self._line is not None:
            wire.close(self._line[1])
            self._line = None

    async def _make(self, call: Call, inherited: bool) -> Seen:
        heard = _Heard(call, monotonic(), inherited)
        try:
            async with asyncio.timeout(PATIENCE):
                if self._line is None:
                    self._line = await asyncio.open_connection("127.0.0.1", self._port())
                keep = await _exchange(call, heard, *self._line)
        except (*wire.BROKEN, asyncio.LimitOverrunError, ValueError):
            keep = False
            heard.ending = Ending.CUT if heard.status else Ending.UNANSWERED
        if not keep:
            self.hang_up()
        return heard.seen()


@dataclass(slots=True)
class _Heard:
    """What a call has heard so far."""

    call: Call
    began: float
    inherited: bool
    ending: Ending = Ending.UNANSWERED
    status: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    def seen(self) -> Seen:
        received = self.body.decode("utf-8", "replace")
        everything = f"{self.fields} {received}"
        refused = self.ending is Ending.REFUSED
        return Seen(
            self.call,
            self.ending,
            self.began,
            monotonic(),
            status=self.status,
            code=_code(received) if refused else "",
            foreign=foreign(everything, self.call.nonce),
            request_id=self.fields.get("x-request-id", ""),
            told='"error"' in received,
            inherited=self.inherited,
        )


async def _exchange(
    call: Call, heard: _Heard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Send and listen; whether the connection may be used again. Raises ``wire.BROKEN``."""
    request = request_of(call)
    leave = call.leave
    if leave is not None and leave.moment is Moment.SENDING:
        writer.write(request[: len(request) * 2 // 3])
        await asyncio.sleep(leave.seconds)
        return _left(call, heard, writer)
    writer.write(request)
    if leave is not None and leave.moment is Moment.WAITING:
        await asyncio.sleep(leave.seconds)
        return _left(call, heard, writer)
    head = await wire.read_head(reader)
    heard.status, heard.fields = head.status, head.fields
    pieces = 0
    async for piece in wire.read_body(reader, head):
        heard.body += piece
        pieces += 1
        if leave is not None and pieces >= leave.pieces:
            return _left(call, heard, writer)
    heard.ending = ending(head, bytes(heard.body), call.nonce)
    return head.keeps_alive


def _left(call: Call, heard: _Heard, writer: asyncio.StreamWriter) -> bool:
    assert call.leave is not None
    wire.close(writer, reset=call.leave.reset)
    heard.ending = Ending.LEFT
    return False


def ending(head: wire.Head, body: bytes, nonce: str) -> Ending:
    """Of an answer that HTTP calls whole: is it?"""
    if head.status != 200:
        return Ending.REFUSED
    if not head.fields.get("content-type", "").startswith("text/event-stream"):
        if _code(body.decode("utf-8", "replace")) != "-":
            return Ending.REFUSED  # an engine's error under 200: whoever reads it knows
        return Ending.COMPLETE if is_whole(_text_of_body(body), nonce) else Ending.HOLLOW
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    values = [json.loads(event) for event in events if event != b"[DONE]"]
    if any("error" in value for value in values):
        return Ending.CUT  # whoever reads it knows
    choices = [choice for value in values for choice in value["choices"]]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    finished = any(choice["finish_reason"] for choice in choices) and events[-1] == b"[DONE]"
    return Ending.COMPLETE if finished and is_whole(text, nonce) else Ending.HOLLOW


def _text_of_body(body: bytes) -> str:
    try:
        return str(json.loads(body)["choices"][0]["message"]["content"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


def _code(body: str) -> str:
    """The code in an error body; ``-`` where it is not one of ours."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "-"


def request_of(call: Call) -> bytes:
    """The bytes of a call."""
    kind = call.kind
    if kind is Kind.NOT_HTTP:
        return f"{call.invention} \x01 {call.invention}\r\n{call.nonce}\r\n\r\n".encode()
    path = f"/v1/{call.invention}" if kind is Kind.UNKNOWN_PATH else CHAT
    key = {
        Kind.BAD_KEY: f"Authorization: Bearer {call.invention}-{call.nonce}\r\n",
        Kind.NO_KEY: "",
    }.get(kind, f"Authorization: Bearer {key_of(call.tenant)}\r\n")
    body = _body(call)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
        f"{key}X-{call.invention}: {call.invention}\r\nUser-Agent: {call.invention}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def key_of(tenant: str) -> str:
    """A tenant's key."""
    return f"{tenant}-secret-key"


def _body(call: Call) -> bytes:
    kind = call.kind
    model = {
        Kind.UNKNOWN_MODEL: f"{call.invention}/{call.invention}",
        Kind.FORBIDDEN_MODEL: FORBIDDEN,
    }.get(kind, MODEL)
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You repeat what you are told."},
            {"role": "user", "content": f"{asked_for(call)} {' '.join(_words(call))}"},
        ],
        "max_tokens": MAX_OUTPUT,
        "stream": call.stream,
        call.invention: call.invention,
    }
    if kind is Kind.SMUGGLED_FIELD:
        body["session_params"] = {"id": call.nonce}
    if kind is Kind.NOT_A_CHAT:
        body["messages"] = call.nonce
    text = json.dumps(body).encode()
    if kind is Kind.NOT_JSON:
        return text[: len(text) * 3 // 4]
    return text.ljust(MAX_BODY + 1) if kind is Kind.TOO_LARGE else text


def _words(call: Call) -> Iterator[str]:
    """What makes the prompt as long as it is. A word is a token or more."""
    rng = random.Random(call.nonce)
    count = call.words + LIMIT_TOKENS if call.kind is Kind.OVER_LIMIT else call.words
    return (rng.choice(_WORDS) for _ in range(count))
