"""How many tokens a body has by Hugging Face's own tokenizer and template, not by poolgate's code.

The fake engine reports this count in its usage, so poolgate's check of it is a real comparison.
"""

from __future__ import annotations

import json

from transformers import AutoTokenizer

from benchmarks.proxy.rig import ROOT
from benchmarks.proxy.traffic import Body

QWEN3 = ROOT / "tokenizers/qwen3"


def prompt_tokens(body: Body) -> int:
    """Tokens of the rendered chat. Raises FileNotFoundError where the tokenizer is not fetched."""
    if not (QWEN3 / "tokenizer.json").exists():
        raise FileNotFoundError("tokenizers/qwen3 is not there: run `make tokenizers`")
    tokenizer = AutoTokenizer.from_pretrained(str(QWEN3), model_max_length=10**9)
    messages = json.loads(body.data)["messages"]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return len(ids)
