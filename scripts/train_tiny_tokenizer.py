"""Train poolgate-tiny: a 2,048-token byte-level BPE with a ChatML template, on the stdlib's text.

    python scripts/train_tiny_tokenizer.py [OUT_DIR]

It serves the demo, the simulated engine and the fast tests; it belongs to no real model. The
vocabulary depends on the Python version whose sources it reads, so the committed files, not a new
run, are what the manifest's checksums describe.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_PLAIN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
# Splits as the GPT-4 family does: contractions, words with one leading mark, digits in threes,
# punctuation runs, newlines, trailing spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages and messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function if call.function is defined else call %}
{{- '\\n<tool_call>\\n' + {'name': function.name, 'arguments': function.arguments} | tojson }}
{{- '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""


def corpus() -> Iterator[str]:
    """The standard library's top-level modules, in a fixed order."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield path.read_text(encoding="utf-8", errors="ignore")


def train() -> Tokenizer:
    """A byte-level BPE with NFC normalisation, like Qwen's, so that its traps are ours too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048 - len(ADDED_PLAIN),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED_PLAIN])
    return tokenizer


def main() -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=Path("tokenizers/poolgate-tiny"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    train().save(str(out / "tokenizer.json"), pretty=False)
    config = {
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
