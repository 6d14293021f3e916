"""Record what a live llama-server counts: ``python record_llama_cpp.py URL`` writes llama_cpp.json.

The server runs a model with Qwen3's tokenizer and chat template, and a context that fits them.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from gateway.tokens.selftest import TEXTS

HERE = Path(__file__).parent
COUNTING = {
    "openai_chat": "/v1/chat/completions/input_tokens",
    "openai_responses": "/v1/responses/input_tokens",
    "anthropic_messages": "/v1/messages/count_tokens",
}


def post(url: str, body: object) -> dict[str, object]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return dict(json.loads(reply.read()))
    except urllib.error.HTTPError:
        return {}


def main(url: str) -> None:
    cases = json.loads((HERE / "cases.json").read_text("utf-8"))
    counts: dict[str, Any] = {dialect: {} for dialect in COUNTING}
    for case in cases:
        answer = post(url + COUNTING[case["dialect"]], case["body"])
        counts[case["dialect"]][case["name"]] = answer.get("input_tokens")
    options = {"add_special": True, "parse_special": True}
    texts = [
        len(post(f"{url}/tokenize", {"content": text, **options})["tokens"])  # type: ignore[arg-type]
        for text in TEXTS
    ]
    recorded = {**counts, "texts": texts}
    (HERE / "llama_cpp.json").write_text(json.dumps(recorded, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
