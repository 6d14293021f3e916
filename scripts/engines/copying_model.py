#!/usr/bin/env python3
"""Write a small Qwen3-shaped model that copies: it answers with text of the KV it attends to.

Random weights make noise of whatever is in the KV pool, so a leak cannot be read in the answer.
These weights are an induction head and nothing else: from the last token the model goes on with
what followed that token in its context, word for word. Every token it generates therefore stands
somewhere in the KV it was given, and one that is not in its prompt is another request's.

The residual stream has a slot each for the current token, the token before it, the answer, and a
constant. Layer 0 attends to the position before (rotary angles alone decide) and copies its token
into the second slot. Layer 1 attends to the positions whose token before is the current token, and
copies theirs into the third, which the output matrix reads. The MLPs are zero. A very large rotary
base leaves most pairs of dimensions unturned, so that layer 1 compares content at any distance.

OUT becomes a Hugging Face model directory (vLLM, SGLang). Needs numpy, safetensors and gguf.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tiny_model import EOS, NORM_EPSILON, PAD, VOCABULARY, read_tokenizer, write_json

WIDTH = 128  # of a slot, and of the one attention head
CURRENT, BEFORE, ANSWER = (slice(at, at + WIDTH) for at in (0, WIDTH, 2 * WIDTH))
CONSTANT = 3 * WIDTH
HIDDEN = 3 * WIDTH + 32
FEED_FORWARD = 32
CONSTANT_VALUE = 8.0

ROPE_BASE = 1e18
POSITION_PAIRS = 6  # turn by 1 rad to 0.04 rad a token
STILL_PAIRS = range(18, WIDTH // 2)  # turn by less than 1e-5 rad a token
POSITION_SHARPNESS = 8.0
CONTENT_SHARPNESS = 6.0


def make_weights(seed: int) -> dict[str, np.ndarray]:
    """Return {Hugging Face name: float32 array}."""
    signs = np.random.default_rng(seed).integers(0, 2, (VOCABULARY, WIDTH)) * 2.0 - 1.0
    embedding, output = np.zeros((2, VOCABULARY, HIDDEN))
    embedding[:, CURRENT] = output[:, ANSWER] = signs
    embedding[:, CONSTANT] = CONSTANT_VALUE
    weights = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": output,
        "model.norm.weight": _undoing_norm(3),
    }
    for layer, parts in enumerate((_position_before(), _what_followed())):
        for name, array in parts.items():
            weights[f"model.layers.{layer}.{name}.weight"] = array
    return {name: array.astype(np.float32) for name, array in weights.items()}


def _undoing_norm(slots: int) -> np.ndarray:
    """Weights that cancel the RMS norm of a stream in which ``slots`` slots hold a token."""
    return np.full(HIDDEN, np.sqrt((slots * WIDTH + CONSTANT_VALUE**2) / HIDDEN))


def _layer(slots: int, sharpness: float, target: slice) -> dict[str, np.ndarray]:
    """A layer that moves the attended positions' tokens to ``target``; without q and k."""
    value, out = np.zeros((WIDTH, HIDDEN)), np.zeros((HIDDEN, WIDTH))
    value[:, CURRENT] = out[target] = np.eye(WIDTH)
    return {
        "input_layernorm": _undoing_norm(slots),
        "post_attention_layernorm": np.ones(HIDDEN),
        "self_attn.q_proj": np.zeros((WIDTH, HIDDEN)),
        "self_attn.k_proj": np.zeros((WIDTH, HIDDEN)),
        "self_attn.v_proj": value,
        "self_attn.o_proj": out,
        "self_attn.q_norm": np.full(WIDTH, sharpness),
        "self_attn.k_norm": np.ones(WIDTH),
        "mlp.gate_proj": np.zeros((FEED_FORWARD, HIDDEN)),
        "mlp.up_proj": np.zeros((FEED_FORWARD, HIDDEN)),
        "mlp.down_proj": np.zeros((HIDDEN, FEED_FORWARD)),
    }


def _position_before() -> dict[str, np.ndarray]:
    """Queries turned back by one position, so that they meet the keys of the position before."""
    layer = _layer(1, POSITION_SHARPNESS, BEFORE)
    pairs = np.arange(POSITION_PAIRS)
    angles = ROPE_BASE ** (-2.0 * pairs / WIDTH)
    layer["self_attn.k_proj"][pairs, CONSTANT] = 1.0
    layer["self_attn.q_proj"][pairs, CONSTANT] = np.cos(angles)
    layer["self_attn.q_proj"][pairs + WIDTH // 2, CONSTANT] = -np.sin(angles)
    return layer


def _what_followed() -> dict[str, np.ndarray]:
    """Keys say "preceded by this token and not that token itself", so that nothing is repeated."""
    layer = _layer(2, CONTENT_SHARPNESS, ANSWER)
    dims = np.array([half + pair for half in (0, WIDTH // 2) for pair in STILL_PAIRS])
    layer["self_attn.q_proj"][dims, dims + CURRENT.start] = 1.0
    layer["self_attn.k_proj"][dims, dims + BEFORE.start] = 1.0
    layer["self_attn.k_proj"][dims, dims + CURRENT.start] = -1.0
    return layer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer", type=Path, help="as for tiny_model.py")
    parser.add_argument("out", type=Path, help="directory to write; made if missing")
    parser.add_argument("--context", type=int, default=131_072, help="to state (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the tokens' signs (%(default)s)")
    arguments = parser.parse_args()

    raw_tokenizer, _, tokenizer_config = read_tokenizer(arguments.tokenizer)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": arguments.context,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_BASE,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": PAD,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
    }
    write_json(out / "config.json", config)
    write_json(out / "tokenizer_config.json", tokenizer_config)
    (out / "tokenizer.json").write_bytes(raw_tokenizer)
    save_file(make_weights(arguments.seed), out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
