"""What is sent, and what the fake engine answers."""

from __future__ import annotations

import json
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "bench"
CHAT_PATH = "/v1/chat/completions"
STAMP = "0" * 12  # the load generator counts here: decimal digits are a token each for Qwen3
MARKER = "the answer of the fake engine 5e1d"
POOL_TOKENS = 8_000_000
CONTEXT_TOKENS = 8_000_000


@dataclass(frozen=True, slots=True)
class Body:
    """One chat request of an exact size; ``stamp_offset`` is where its number goes, in bytes."""

    name: str
    data: bytes
    stamp_offset: int


def chat_body(name: str, size: int) -> Body:
    """A chat of exactly ``size`` bytes: a system message, then prose and code as one question."""
    empty = _request("")
    text = json.dumps(_corpus(size))[1:-1][: size - len(empty)]
    text = re.sub(r"\\$", "", re.sub(r"(?<!\\)((?:\\\\)*)\\$", r"\1", text))
    text += "." * (size - len(empty) - len(text))
    data = _request("@").replace("@", text).encode("ascii")
    json.loads(data)
    if len(data) != size:
        raise AssertionError(f"{name}: {len(data)} bytes, not {size}")
    return Body(name, data, data.index(STAMP.encode()))


def _request(text: str) -> str:
    system = f"Call {STAMP}. You are a careful assistant. Answer in one short sentence."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 16, "temperature": 0})


def _corpus(size: int) -> str:
    """Printable ASCII of Python's own library: real English and code that every machine has."""
    parts: list[str] = []
    have = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py")):
        if have >= size:
            return "".join(parts)
        source = path.read_text("utf-8", errors="ignore")
        parts.append(re.sub(r"[^\n\t -~]", "", source).replace("@", "at"))
        have += len(parts[-1])
    raise RuntimeError(f"Python's library has only {have} characters, {size} are needed")


def chat_answer(prompt_tokens: int) -> dict[str, Any]:
    """The fake engine's only answer; its usage says what the gateway must have counted."""
    return {
        "id": "5a89fc3e8ec646aeb6e4763081475882",
        "object": "chat.completion",
        "created": 1796014456,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": MARKER, "reasoning_content": None},
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + 9,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def engine_routes(pool_tokens: int = POOL_TOKENS, prompt_tokens: int = 1) -> dict[str, Any]:
    """Every path that poolgate or a peer asks an SGLang worker for, with its JSON.

    A chat's answer reports so many ``prompt_tokens``.
    """
    info = {
        "model_path": "/models/bench",
        "tokenizer_path": "/models/bench",
        "served_model_name": MODEL,
        "context_length": CONTEXT_TOKENS,
        "max_total_num_tokens": pool_tokens,
        "max_req_input_len": min(CONTEXT_TOKENS, pool_tokens) - 6,
        "page_size": 1,
        "tp_size": 1,
        "dp_size": 1,
        "disaggregation_mode": "null",
        "allow_auto_truncate": False,
        "internal_states": [{"memory_usage": {"token_capacity": pool_tokens}}],
        "status": "ready",
        "version": "0.5.23",
    }
    model = {
        "model_path": "/models/bench",
        "served_model_name": MODEL,
        "tokenizer_path": "/models/bench",
        "is_generation": True,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
    }
    card = {
        "id": MODEL,
        "object": "model",
        "created": 1796014454,
        "owned_by": "sglang",
        "root": MODEL,
        "parent": None,
        "max_model_len": CONTEXT_TOKENS,
    }
    return {
        CHAT_PATH: chat_answer(prompt_tokens),
        "/v1/models": {"object": "list", "data": [card]},
        "/server_info": info,
        "/get_server_info": info,
        "/model_info": model,
        "/get_model_info": model,
        "/health": {},
        "/health_generate": {},
        "/v1/loads": {"loads": []},
        "/get_load": [],
    }
