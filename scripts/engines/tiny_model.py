#!/usr/bin/env python3
"""Write a tiny Qwen3-shaped model with random weights, for real engines on a CPU.

The text it generates is noise; its tokenizer, chat template, context length and
vocabulary are real, and those are what a gateway that counts prompts is tested on.
OUT becomes a Hugging Face model directory (vLLM, SGLang) that also holds
tiny.gguf (llama.cpp). The same arguments always write the same bytes.

Needs numpy, safetensors and gguf; neither torch nor a model hub.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

HIDDEN = 128
LAYERS = 2
HEADS = 2
KV_HEADS = 1
HEAD_DIM = 64
FEED_FORWARD = 256
VOCABULARY = 151_936  # Qwen3's; more than the tokenizer's 151,669, as in the real models
NORM_EPSILON = 1e-6
ROPE_BASE = 1_000_000.0
WEIGHT_SCALE = 0.05

BOS = PAD = 151_643  # <|endoftext|>
EOS = 151_645  # <|im_end|>


def read_tokenizer(directory: Path) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """Return tokenizer.json as bytes and parsed, and tokenizer_config.json parsed.

    tokenizer.json may be gzipped, and the chat template may lie beside the
    configuration as chat_template.jinja; the result is the same.
    """
    plain = directory / "tokenizer.json"
    raw = (
        plain.read_bytes()
        if plain.exists()
        else gzip.decompress((directory / "tokenizer.json.gz").read_bytes())
    )
    config_path = directory / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.exists() else {}
    template = directory / "chat_template.jinja"
    if template.exists():
        config["chat_template"] = template.read_text(encoding="utf-8")
    if not isinstance(config.get("chat_template"), str):
        raise SystemExit(
            f"{directory}: no chat template in tokenizer_config.json or chat_template.jinja"
        )
    return raw, json.loads(raw), config


def make_weights(seed: int) -> dict[str, tuple[str, np.ndarray]]:
    """Return {Hugging Face name: (GGUF name, float32 array)}."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns), dtype=np.float32) * WEIGHT_SCALE).astype(
            np.float32
        )

    def ones(size: int) -> np.ndarray:
        return np.ones(size, dtype=np.float32)

    weights = {
        "model.embed_tokens.weight": ("token_embd.weight", matrix(VOCABULARY, HIDDEN)),
        "model.norm.weight": ("output_norm.weight", ones(HIDDEN)),
    }
    for layer in range(LAYERS):
        for name, gguf_name, array in (
            ("input_layernorm", "attn_norm", ones(HIDDEN)),
            ("self_attn.q_proj", "attn_q", matrix(HEADS * HEAD_DIM, HIDDEN)),
            ("self_attn.k_proj", "attn_k", matrix(KV_HEADS * HEAD_DIM, HIDDEN)),
            ("self_attn.v_proj", "attn_v", matrix(KV_HEADS * HEAD_DIM, HIDDEN)),
            ("self_attn.o_proj", "attn_output", matrix(HIDDEN, HEADS * HEAD_DIM)),
            ("self_attn.q_norm", "attn_q_norm", ones(HEAD_DIM)),
            ("self_attn.k_norm", "attn_k_norm", ones(HEAD_DIM)),
            ("post_attention_layernorm", "ffn_norm", ones(HIDDEN)),
            ("mlp.gate_proj", "ffn_gate", matrix(FEED_FORWARD, HIDDEN)),
            ("mlp.up_proj", "ffn_up", matrix(FEED_FORWARD, HIDDEN)),
            ("mlp.down_proj", "ffn_down", matrix(HIDDEN, FEED_FORWARD)),
        ):
            weights[f"model.layers.{layer}.{name}.weight"] = (
                f"blk.{layer}.{gguf_name}.weight",
                array,
            )
    return weights


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_hugging_face(
    out: Path,
    weights: dict[str, tuple[str, np.ndarray]],
    raw_tokenizer: bytes,
    config: dict[str, Any],
    context: int,
) -> None:
    """Write config, generation config, tokenizer and model.safetensors."""
    write_json(
        out / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "intermediate_size": FEED_FORWARD,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": context,
            "rms_norm_eps": NORM_EPSILON,
            "rope_theta": ROPE_BASE,
            "rope_scaling": None,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": LAYERS,
            "initializer_range": 0.02,
            "use_cache": True,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "torch_dtype": "bfloat16",
        },
    )
    write_json(
        out / "generation_config.json",
        {
            "bos_token_id": BOS,
            "pad_token_id": PAD,
            "eos_token_id": [EOS, PAD],
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
        },
    )
    (out / "tokenizer.json").write_bytes(raw_tokenizer)
    write_json(out / "tokenizer_config.json", config)
    # numpy has no bfloat16; engines cast to the type in config.json as they load.
    save_file(
        {name: array.astype(np.float16) for name, (_, array) in weights.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )


def write_gguf(
    path: Path,
    weights: dict[str, tuple[str, np.ndarray]],
    tokenizer: dict[str, Any],
    config: dict[str, Any],
    context: int,
) -> None:
    """Write the same weights and tokenizer as one GGUF file."""
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name("tiny-qwen3")
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    tokens = [f"[PAD{i}]" for i in range(VOCABULARY)]
    types = [gguf.TokenType.UNUSED] * VOCABULARY
    for text, token in tokenizer["model"]["vocab"].items():
        tokens[token], types[token] = text, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], kind
    merges = [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in tokenizer["model"]["merges"]
    ]

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)
    writer.add_add_bos_token(False)
    writer.add_chat_template(config["chat_template"])

    for gguf_name, array in weights.values():
        writer.add_tensor(gguf_name, array if array.ndim == 1 else array.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tokenizer",
        type=Path,
        help="directory with Qwen3's tokenizer.json (or .json.gz) and tokenizer_config.json",
    )
    parser.add_argument("out", type=Path, help="directory to write; made if missing")
    parser.add_argument(
        "--context", type=int, default=131_072, help="trained context length to state (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random weights (%(default)s)")
    arguments = parser.parse_args()

    raw, tokenizer, config = read_tokenizer(arguments.tokenizer)
    arguments.out.mkdir(parents=True, exist_ok=True)
    weights = make_weights(arguments.seed)
    write_hugging_face(arguments.out, weights, raw, config, arguments.context)
    write_gguf(arguments.out / "tiny.gguf", weights, tokenizer, config, arguments.context)


if __name__ == "__main__":
    main()
