"""An engine on a raw socket that says SGLang's limits and does wrong what a call's prompt names.

The caller writes into its prompt what is to become of the answer, so that a call's fate is its own
whatever order calls come in. The engine remembers which calls reached it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.soak import wire
from benchmarks.soak.answers import pieces_of
from benchmarks.soak.plan import FORBIDDEN, LIMIT_TOKENS, MODEL, Call, Kind
from gateway.simulate.chats import from_openai
from gateway.simulate.tokeniser import Tokeniser

ROOT = Path(__file__).resolve().parents[2]
SLOW, LATE = 0.7, 6.0  # seconds to the first byte: within the gateway's deadline, and beyond it
_ASKED = re.compile(
    r"(?P<nonce>qz[0-9a-f]{24}) kind=(?P<kind>\w+) pieces=(?P<pieces>\d+) pause=(?P<pause>[\d.]+)"
)
_END = b"data: [DONE]\n\n"


def asked_for(call: Call) -> str:
    """What a prompt says to the engine."""
    return f"{call.nonce} kind={call.kind} pieces={call.pieces} pause={call.pause:.3f}"


class Engine:
    """The server. ``reached`` are the nonces of the calls that came, ``probes`` all else."""

    def __init__(self) -> None:
        self.reached: dict[str, Kind] = {}
        self.strangers = 0  # requests that no call of ours can have become
        self.restarts = 0
        self.most_tokens = 0
        self._recent: deque[tuple[str, str]] = deque(maxlen=64)  # nonces with the gateway's ids
        self._tokeniser = Tokeniser(ROOT / "tokenizers" / "poolgate-tiny")
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Engine]:
        await self._listen()
        try:
            yield self
        finally:
            await self._stop()

    async def restart(self, seconds: float) -> None:
        """All answers are cut off and nobody listens for so long; it is another process then."""
        await self._stop()
        await asyncio.sleep(seconds)
        self.restarts += 1
        await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._open):
            wire.close(writer, reset=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection, one after the other."""
        self._open.add(writer)
        try:
            while True:
                head = await wire.read_head(reader)
                body = b"".join([piece async for piece in wire.read_body(reader, head)])
                if not await self._answer(head, body, reader, writer):
                    return
        except (*wire.BROKEN, asyncio.CancelledError):  # the other side's end, or our own
            pass
        finally:
            self._open.discard(writer)
            wire.close(writer)

    async def _answer(
        self,
        head: wire.Head,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Whether the connection may go on."""
        method, target, _ = head.line.split(" ", 2)
        if method == "GET":
            writer.write(_probe(target, self.restarts))
            return True
        asked = _ASKED.search(body.decode("utf-8", "replace"))
        if target != "/v1/chat/completions" or asked is None:
            self.strangers += 1
            writer.write(_whole(b'{"detail":"Not Found"}', "404 Not Found"))
            return True
        request = json.loads(body)
        prompt = len(self._tokeniser.encode_chat(from_openai(request)))
        self.most_tokens = max(self.most_tokens, prompt)
        nonce, kind = asked["nonce"], Kind(asked["kind"])
        self.reached[nonce] = kind
        told = _Told(request, nonce, kind, int(asked["pieces"]), prompt)
        own = nonce, told.id
        if kind is Kind.SWAPPED and self._recent:
            told.nonce, told.id = self._recent[0]
        self._recent.append(own)
        if kind in (Kind.SLOW, Kind.LATE):
            await asyncio.sleep(SLOW if kind is Kind.SLOW else LATE)
        if request.get("stream"):
            await self._stream(told, float(asked["pause"]), writer)
        else:
            await asyncio.sleep(float(asked["pause"]))
            _require_open(writer)
            writer.write(told.whole())
        await writer.drain()
        if kind is Kind.HANG:
            await reader.read(1)  # until the other side hangs up
        if kind in (Kind.CUT, Kind.RESET, Kind.HANG):
            wire.close(writer, reset=kind is Kind.RESET)
            return False
        return True

    async def _stream(self, told: _Told, pause: float, writer: asyncio.StreamWriter) -> None:
        _require_open(writer)
        if told.kind is Kind.ERROR_500:
            writer.write(told.whole())
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for event in told.events():
            _require_open(writer)
            writer.write(wire.chunk(event))
            await writer.drain()
            if pause:
                await asyncio.sleep(pause)
        _require_open(writer)
        if told.kind not in (Kind.CUT, Kind.RESET, Kind.HANG):
            writer.write(wire.chunk(b""))


def _require_open(writer: asyncio.StreamWriter) -> None:
    """uvloop raises no OSError where the other side has gone meanwhile."""
    if writer.is_closing():
        raise ConnectionResetError


class _Told:
    """What is said to one call."""

    def __init__(
        self, request: dict[str, Any], nonce: str, kind: Kind, pieces: int, prompt: int
    ) -> None:
        self.id = str(request.get("rid", "none"))
        self.nonce = nonce
        self.kind = kind
        self._model = request["model"]
        self._pieces = pieces
        self._prompt = prompt
        options = request.get("stream_options") or {}
        self._tells_usage = bool(options.get("include_usage"))

    def whole(self) -> bytes:
        """The answer in one piece, as wrong as it is to be."""
        if self.kind is Kind.ERROR_500:
            error = {"message": f"{self.nonce} broke the engine", "code": "engine_is_broken"}
            return _whole(_json({"error": error}), "500 Internal Server Error")
        if self.kind is Kind.EMPTY:
            return _whole(b"")
        if self.kind is Kind.ERROR_EVENT:
            return _whole(_json({"error": {"message": "scheduler failed", "code": 500}}))
        finish = None if self.kind is Kind.UNFINISHED else "stop"
        text = "".join(pieces_of(self.nonce, self._pieces))
        body = _json(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": 1796014456,
                "model": self._model,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text},
                        "finish_reason": finish,
                    }
                ],
                "usage": self._usage(),
            }
        )
        if self.kind is Kind.UNREADABLE:
            return _whole(body[: len(body) // 2])
        whole = _whole(body)
        broken = self.kind in (Kind.CUT, Kind.RESET, Kind.HANG)
        return whole[: len(whole) - len(body) // 2] if broken else whole

    def events(self) -> Sequence[bytes]:
        """The answer as a stream's events."""
        deltas = [self._delta({"role": "assistant", "content": ""})]
        deltas += [self._delta({"content": text}) for text in pieces_of(self.nonce, self._pieces)]
        middle = len(deltas) // 2
        match self.kind:
            case Kind.EMPTY:
                return []
            case Kind.CUT | Kind.RESET | Kind.HANG | Kind.UNFINISHED:
                return deltas[:middle]
            case Kind.UNREADABLE:
                return [*deltas[:middle], deltas[middle][: len(deltas[middle]) // 2]]
            case Kind.ERROR_EVENT:
                error = {"error": {"message": "scheduler failed", "code": 500}}
                return [*deltas[:middle], _event(error), _END]
        deltas.append(self._delta({}, "stop"))
        if self._tells_usage:
            deltas.append(_event({**self._chunk(), "choices": [], "usage": self._usage()}))
        return [*deltas, _END]

    def _usage(self) -> dict[str, Any]:
        prompt, completion = self._prompt, self._pieces + 2
        if self.kind is Kind.WRONG_USAGE:
            prompt = self._prompt // 4
        if self.kind is Kind.IMPOSSIBLE_USAGE:
            completion = 100_000
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _chunk(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": 1796014456,
            "model": self._model,
        }

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event({**self._chunk(), "choices": [choice]})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _event(value: Any) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _whole(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _probe(target: str, restarts: int) -> bytes:
    """What a worker of SGLang says of itself."""
    if target in ("/server_info", "/get_server_info"):
        return _whole(
            _json(
                {
                    "max_req_input_len": LIMIT_TOKENS + 1,
                    "max_total_num_tokens": LIMIT_TOKENS + 6,
                    "context_length": 2 * LIMIT_TOKENS,
                    "allow_auto_truncate": False,
                    "disaggregation_mode": "null",
                    "version": "0.5.23",
                    "startup_time": restarts,
                    "internal_states": [],
                }
            )
        )
    if target == "/v1/models":
        cards = [
            {"id": model, "owned_by": "sglang", "max_model_len": 2 * LIMIT_TOKENS}
            for model in (MODEL, FORBIDDEN)
        ]
        return _whole(_json({"data": cards}))
    return _whole(b"{}", "404 Not Found")
