"""1k to 1M prompt tokens: a new prompt that is forwarded, the next turn of a chat, one refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.growth.gate import Case, Gate, Rig, key_of
from benchmarks.proxy.reference import prompt_tokens
from benchmarks.proxy.rig import FakeEngine
from benchmarks.proxy.traffic import CHAT_PATH, STAMP, Body, chat_answer, chat_body, engine_routes

SIZES = {"1k": 1_000, "4k": 4_000, "16k": 16_000, "64k": 64_000, "256k": 256_000, "1M": 1_000_000}
BYTES_A_TOKEN = 4.4  # a first guess; the second is by what the first one came to
CONNECTIONS = 8
TOO_LONG = {"status": 400, "marker": "context_length_exceeded"}
FORGETFUL = "counting: {cache_bytes: 0}"


def measure(rig: Rig, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each length. Tenant 0 may send anything, tenant n half of the nth length.

    The load generator changes a few digits of a body, so that most of it has been seen before. New
    prompts are therefore those of a gateway that remembers no counts.
    """
    bodies = [_body_of(name, tokens) for name, tokens in SIZES.items()]
    longest = [100_000_000, *(tokens // 2 for tokens in SIZES.values())]
    rows: list[dict[str, Any]] = [
        {"prompt": body.name, "tokens": tokens, "bytes": len(body.data)} for body, tokens in bodies
    ]
    with rig.engine(engine_routes()) as engine:
        for kind, more in (("new", FORGETFUL), ("turn", "")):
            with rig.gate(Case(engine.urls, longest, more=more)) as gate:
                gate.calibrated()
                start = gate.memory_mib()
                for number, (row, (body, tokens)) in enumerate(zip(rows, bodies, strict=True), 1):
                    sent = body if kind == "new" else next_turn(body)
                    told = tokens if kind == "new" else prompt_tokens(sent)
                    engine.set(CHAT_PATH, chat_answer(told))
                    row[kind] = _added(rig, gate, engine, sent)
                    row[kind]["grown_mib"] = round(gate.memory_mib() - start, 1)
                    if kind == "new":
                        key = key_of(number)
                        row["refused"] = gate.cost(engine, body, CONNECTIONS, key=key, **TOO_LONG)
                    say(f"{body.name} {kind} {row}")
    return rows


def _added(rig: Rig, gate: Gate, engine: FakeEngine, body: Body) -> dict[str, float]:
    """What its calls cost, and the latency that is added to calling the engine directly."""
    direct = rig.load.run(engine.port, body, 1, rig.plan.single, 1, None)["p50_us"]
    cost = gate.cost(engine, body, CONNECTIONS)
    cost["added_p50_us"] = round(cost.pop("single_p50_us") - direct, 1)
    return cost


def next_turn(body: Body) -> Body:
    """The same chat, whose history stays as it is while its last message differs each time."""
    chat = json.loads(body.data.replace(STAMP.encode(), b"1" * len(STAMP)))
    chat["messages"] += [
        {"role": "assistant", "content": "It is a part of Python's library."},
        {"role": "user", "content": f"And what does line {STAMP} of it do?"},
    ]
    data = json.dumps(chat).encode("ascii")
    return Body(f"{body.name} next turn", data, data.index(STAMP.encode()))


def _body_of(name: str, tokens: int) -> tuple[Body, int]:
    """A chat of about so many tokens, and how many they are by Hugging Face's tokenizer."""
    size = int(tokens * BYTES_A_TOKEN)
    exact = prompt_tokens(chat_body(name, size))
    body = chat_body(name, max(size * tokens // exact, 1_000))
    return body, prompt_tokens(body)
