#!/usr/bin/env python3
"""Record what an engine answers around its limit, for tests/data/refusals.

    capture_refusals.py --server 127.0.0.1:18000 --limit 1023 vllm.json

Prompts of exactly L-1, L, L+1 and L+64 tokens to each endpoint, with a maximum of output tokens of
1, of 64 and without one. The engine serves the tiny model (run_engine.py); lengths are made exact
by what it reports of a short prompt. Answers of status 200 are recorded by their status alone,
unless they are an error all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import re
from pathlib import Path
from typing import Any

MODEL = "tiny"
WORD = " apple"  # one token
ERROR = re.compile(r'"error": ?\{')
OFFSETS = (-1, 0, 1, 64)
MAXIMA = (1, 64, None)  # of output tokens
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "messages")
)
MAXIMUM = {
    CHAT: "max_tokens",
    COMPLETIONS: "max_tokens",
    RESPONSES: "max_output_tokens",
    MESSAGES: "max_tokens",
}


def request(path: str, words: int, maximum: int | None, *, stream: bool) -> dict[str, Any]:
    text = "x" + WORD * words
    prompt = {COMPLETIONS: {"prompt": text}, RESPONSES: {"input": text}}.get(
        path, {"messages": [{"role": "user", "content": text}]}
    )
    limit = {} if maximum is None else {MAXIMUM[path]: maximum}
    return {"model": MODEL, **prompt, **limit, "stream": stream}


def post(server: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection(server, timeout=300)) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def shortest(server: str, path: str) -> int:
    """Tokens of the prompt without a word."""
    status, body = post(server, path, request(path, 0, 8, stream=False))
    if status != 200:
        raise SystemExit(f"{path}: {status} {body}")
    usage = json.loads(body)["usage"]
    if path == MESSAGES:  # SGLang and llama.cpp leave the cached ones out of input_tokens
        return usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    return usage.get("prompt_tokens", usage.get("input_tokens"))


def record(server: str, limit: int) -> list[dict[str, Any]]:
    found = []
    for path in MAXIMUM:
        base = shortest(server, path)
        maxima = MAXIMA[: 2 if path == MESSAGES else 3]  # messages must have one
        for offset, maximum, stream in itertools.product(OFFSETS, maxima, (False, True)):
            body = request(path, limit + offset - base, maximum, stream=stream)
            status, answer = post(server, path, body)
            one = {"path": path, "offset": offset, "maximum": maximum, "stream": stream}
            error = status != 200 or ERROR.search(answer)
            found.append({**one, "status": status, "body": answer if error else None})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", required=True)
    parser.add_argument("--limit", type=int, required=True, help="L, the longest prompt taken")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    found = record(asked.server, asked.limit)
    lines = ",\n".join(json.dumps(each) for each in found)
    asked.out.write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main()
