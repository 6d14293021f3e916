"""What the fake engine streams: chunks of a chat as SGLang and vLLM write them, word by word."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.proxy.traffic import CHAT_PATH, MODEL

MARKER = "zero at "  # before the time of a stream's zero (benchmarks/native/upstream.c)
STAMP = "0" * 20
INTERVAL_US = 20_000  # 50 tokens a second
WORDS = 1_000  # that go round
_PIECE = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")


def stream(*, together: int = 1, interval_us: int = INTERVAL_US) -> str:
    """What PUT /bench/stream takes.

    ``interval_us`` 0: a stream has its first two events and then no more, without an end.
    """
    first = [_chunk({"role": "assistant", "content": ""}), _chunk({"content": MARKER + STAMP})]
    last = [_chunk({}, finish="length"), _usage(), "data: [DONE]\n\n"]
    round_of = [_chunk({"content": word}) for word in _words()]
    head = f"{CHAT_PATH} {interval_us} {together}\n"
    return head + "".join([*first, *round_of, *last])


def request() -> bytes:
    """The request whose answer is a stream, its usage asked for: nothing is taken out of it."""
    messages = [{"role": "user", "content": "Tell me of Python's library, at length."}]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps({"model": MODEL, "messages": messages, **options}).encode()


def _words() -> Iterator[str]:
    """English and code out of Python's library in pieces about as long as tokens."""
    text = (Path(sysconfig.get_path("stdlib")) / "argparse.py").read_text("utf-8")
    for _, found in zip(range(WORDS), _PIECE.finditer(text), strict=False):
        yield found[0]


def _chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    """As SGLang 0.5 writes it; vLLM's is shorter by two nulls."""
    choice = {
        "index": 0,
        "delta": {"reasoning_content": None, **delta},
        "logprobs": None,
        "finish_reason": finish,
        "matched_stop": None,
    }
    return _event(choices=[choice])


def _usage() -> str:
    usage = {"prompt_tokens": 20, "total_tokens": 21, "completion_tokens": 1}
    return _event(choices=[], usage=usage)


def _event(**members: Any) -> str:
    value = {
        "id": "5a89fc3e8ec646aeb6e4763081475882",
        "object": "chat.completion.chunk",
        "created": 1796014456,
        "model": MODEL,
        **members,
    }
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n"
