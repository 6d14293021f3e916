"""``python -m benchmarks.counting.fuzz``: poolgate's counts against the reference libraries'.

Seeded strings of many kinds, alone and joined to texts long enough to be cut, for each tokenizer;
Hugging Face's ``tokenizers`` is the reference, for ranks files tiktoken. Checks each bound too.
Exit 1 on any mismatch; the strings' seeds are told, not the strings.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.counting import once, texts
from benchmarks.proxy import machine
from benchmarks.proxy.rig import ROOT
from gateway.tokens.assets import AssetStore
from gateway.tokens.encoder import Encoder
from gateway.tokens.libraries import load_encoder

TOKENIZERS = ("qwen3", "deepseek_v3", "deepseek_v4", "gptoss", "o200k_base", "cl100k_base")
JOINED = 400  # strings to a long text
PIECES = (
    "the", " The", "Ab", "zQ", "'s", "'LL", "''", "don't", "é", "e\u0301", "ß", "Жя", "中", "龥字",
    "한국", "の",
    "\u0958", "\U0001d1c0", "😀", "👩\u200d👧", "\u200b", "\ufeff", "\ufffd", "1", "234",
    "１", "٣", "²", " ", "  ", " " * 19, "\t", "\n", "\n\n", "\r\n", "\v", "\x85", "\xa0", "\u3000",
    "/", "//", "\n/", "===", "({[", "_", "-", "\x00", "\x7f", "<|im_end|>", "<|endoftext|>",
    "<think>", "</think>", "<｜end▁of▁sentence｜>", "<|end|>", "<|", "|>", "</s>",
)  # fmt: skip

BLOCKS = (
    (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x700), (0x900, 0xE80), (0x3000, 0x9FFF),
    (0xAC00, 0xD7A4), (0x1F000, 0x1FAFF),
)  # fmt: skip


def string_of(seed: int) -> str:
    """The string of a seed: awkward pieces, any Unicode, or a slice of a real text."""
    dice = random.Random(seed)
    size = int(10 ** dice.uniform(0, 2.3))
    match seed % 4:
        case 0:
            return "".join(dice.choices(PIECES, k=1 + size // 3))
        case 1:
            return "".join(_character(dice) for _ in range(size))
        case 2:
            block = dice.choice(BLOCKS)
            return "".join(chr(dice.randrange(*block)) for _ in range(size))
        case _:
            kind = dice.choice(("fresh words", "Chinese", "base64", "digits"))
            return texts.KINDS[kind](size, dice)


def _character(dice: random.Random) -> str:
    code = dice.randrange(0x110000 - 0x800)
    return chr(code if code < 0xD800 else code + 0x800)


def compare(name: str, encoder: Encoder, strings: Sequence[str]) -> dict[str, Any]:
    """Mismatches by number of the string; its seed is the same."""
    count = once.reference(name)
    wrong, below = [], []
    for number, text in enumerate(strings):
        expected = int(count(text))
        if encoder.count(text) != expected:
            wrong.append(number)
        bound = encoder.upper_bound(text)
        if bound is None or bound < expected:
            below.append(number)
    return {"texts": len(strings), "mismatches": wrong, "bounds_below": below}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strings", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/counting-fuzz.json")
    options = parser.parse_args()
    strings = [string_of(options.seed + number) for number in range(options.strings)]
    prose = texts.prose(400_000, random.Random(options.seed))
    code = texts.code(400_000, random.Random(options.seed))
    joined = [
        "".join(strings[start : start + JOINED]) + text[start * 20 : start * 20 + 40_000]
        for start in range(0, len(strings), JOINED)
        for text in (prose, code)
    ]
    found: dict[str, Any] = {}
    for name in TOKENIZERS:
        started = time.monotonic()
        encoder = load_encoder(AssetStore.open().resolve(name))
        found[name] = {
            "library": encoder.library,
            "strings": compare(name, encoder, strings),
            "long": compare(name, encoder, joined),
            "seconds": round(time.monotonic() - started, 1),
        }
        print(name, found[name], file=sys.stderr, flush=True)
    run = {
        "machine": machine.describe(),
        "seed": options.seed,
        "characters": sum(map(len, strings)) + sum(map(len, joined)),
        "tokenizers": found,
    }
    options.out.write_text(json.dumps(run, indent=1) + "\n")
    sides = [one[kind] for one in found.values() for kind in ("strings", "long")]
    return int(any(side["mismatches"] or side["bounds_below"] for side in sides))


if __name__ == "__main__":
    sys.exit(main())
