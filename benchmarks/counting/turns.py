"""The next turn of a long chat: parse, render and count, with and without remembered counts.

    python -m benchmarks.counting.turns [TOKENIZER]

The chat is 1.6 MB of text that no cache has seen. Prints milliseconds and ratios; fails where a
count differs from Hugging Face tokenizers' of the whole text.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from dataclasses import replace

import tokenizers

from gateway.dialects.openai_chat import OpenAiChat
from gateway.rendering.registry import engine_rendering
from gateway.tokens.anchors import UNCUT
from gateway.tokens.assets import AssetStore
from gateway.tokens.counter import PromptCounter
from gateway.tokens.encoder import Means
from gateway.tokens.libraries import load_encoder
from gateway.tokens.recall import CountCache
from gateway.tokens.template import load_template
from gateway.types import Counted

MESSAGES = 200
MESSAGE_BYTES = 8_000
TURNS = 12


def message(index: int, rng: random.Random) -> dict[str, str]:
    """Lines of made-up words, so that no tokenizer's own cache of words has them."""
    lines, size = [], 0
    while size < MESSAGE_BYTES:
        words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 9))) for _ in range(9)]
        lines.append(" ".join(words) + f" = {rng.randint(0, 9999)};")
        size += len(lines[-1]) + 1
    return {"role": ("user", "assistant")[index % 2], "content": "\n".join(lines)}


LETTERS = "eeeeaaaiiooouutttnnnsssrrrlllddhcmfpgbvky"


def body(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}, ensure_ascii=False).encode()


def counted(counter: PromptCounter, raw: bytes, means: Means) -> tuple[int, float]:
    """The count and its milliseconds, parsing and rendering included."""
    started = time.perf_counter()
    parsed = OpenAiChat().parse("/v1/chat/completions", raw)
    length = counter.count(parsed.prompt, None, means)
    took = (time.perf_counter() - started) * 1e3
    assert isinstance(length, Counted)
    return length.total, took


def main(name: str) -> None:
    files = AssetStore.open().resolve(name)
    rendering = engine_rendering("vllm")
    fast = PromptCounter(load_encoder(files), load_template(files), rendering)
    reference = tokenizers.Tokenizer.from_file(str(files.folder / "tokenizer.json"))

    def length(text: str) -> int:
        return len(reference.encode_batch_fast([text], add_special_tokens=False)[0])

    slow = replace(fast, encoder=replace(fast.encoder, length=length, digest=b"slow"))
    whole = replace(slow, encoder=replace(slow.encoder, cutter=UNCUT))
    cache = CountCache(2**26, b"secret")
    ways: dict[str, tuple[PromptCounter, str | None]] = {
        f"{fast.encoder.library}, remembered": (fast, "a"),
        f"{fast.encoder.library}, anew": (fast, None),
        "tokenizers, remembered": (slow, "a"),
        "tokenizers, whole": (whole, None),
    }
    rng = random.Random(5)
    chat = [message(index, rng) for index in range(MESSAGES + 2 * TURNS + 1)]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(TURNS + 1):
        raw = body(chat[: MESSAGES + 1 + 2 * turn])
        totals = set()
        for way, (counter, tenant) in ways.items():
            total, took = counted(counter, raw, Means(tenant and cache.of_tenant(tenant)))
            times[way].append(took)
            totals.add(total)
        assert len(totals) == 1, f"counts differ: {totals}"
    print(f"{name}, {len(raw) / 1e6:.1f} MB, {total:,} tokens; milliseconds")
    base = statistics.median(next(iter(times.values()))[1:])
    for way, (first, *later) in times.items():
        middle = statistics.median(later)
        print(
            f"  {way:<23} first turn {first:7.1f}, next turn {middle:7.1f}"
            f" (worst {max(later):.1f}), {middle / base:5.1f} times the first line's"
        )


if __name__ == "__main__":
    main(*sys.argv[1:] or ["qwen3"])
