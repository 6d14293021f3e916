"""Building an ``Encoder`` from checked files: the fast library where it proves right.

fastokens counts; HF tokenizers (or tiktoken, for ranks files) is the reference it is compared
with at load, on ``gateway.tokens.selftest``'s texts. Where they differ, or the fast one cannot
load, the reference counts and the encoder carries a warning for operators. Objects of all three
are loaded once, set once and never changed afterwards, so that threads may share them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastokens
import msgspec
import numpy as np
import tiktoken
import tokenizers

from gateway.tokens.anchors import UNCUT, Cutter, apart, search_for, usable_tokens
from gateway.tokens.assets import AssetError, TiktokenRule, TokenizerFiles
from gateway.tokens.bounds import Savings, savings_of_json, savings_of_ranks
from gateway.tokens.chunks import CHUNK_CHARS, could_be_cut
from gateway.tokens.encoder import Encoder, Growth, UncountableText
from gateway.tokens.selftest import cuts_add_up, same_ids, sample_texts

# Pre-tokenizers that only split: nothing is put in that the text does not have.
_SPLITTING = frozenset(
    {"Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "UnicodeScripts"}
)


# For texts longer than this (characters), fastokens is asked for a buffer of ids. Its other call
# makes a list of them while it holds the GIL, nobody reads it, and 4 million take 20 ms.
FLAT_CHARS = 65_536
ID_BYTES = 4

# Texts that llama.cpp (src/llama-vocab.cpp) makes control tokens wherever a vocabulary has them.
CONTROL_LOOKING = (
    "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "<|end|>", "<|eot_id|>", "<|eom_id|>",
    "<|im_end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<|endoftext|>",
    "<|end_of_text|>", "<end_of_turn>", "<end_of_utterance>", "<|fim_prefix|>", "<|fim_suffix|>",
    "<|fim_middle|>", "<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>",
    "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<reponame>", "<fim-prefix>",
    "<fim-suffix>", "<fim-middle>", "<fim-pad>", "<fim-repo>", "<PRE>", "<SUF>", "<MID>", "<PAD>",
    "<REPO>",
)  # fmt: skip


def load_encoder(files: TokenizerFiles, *, normalise: bool = True) -> Encoder:
    """Load, self-test and choose.

    ``normalise`` False is llama.cpp's reading of the same file: no normaliser, and vocabulary
    entries that look like control tokens are control tokens.

    Raises:
        AssetError: neither library can read the files.
    """
    if files.tiktoken is not None:
        return _from_ranks(files, files.tiktoken)
    path = files.path("tokenizer.json")
    if path is None:
        raise AssetError(f"tokenizer {files.name}: no tokenizer.json in {files.folder}")
    return _from_json(files.name, path, normalise=normalise)


def _from_json(name: str, path: Path, *, normalise: bool) -> Encoder:
    try:
        # A saved truncation or padding would change every count.
        spec = msgspec.json.decode(path.read_bytes())
        spec |= {"truncation": None, "padding": None}
        if not normalise:
            spec |= {"normalizer": None, "added_tokens": _with_control_looking(spec)}
        text = msgspec.json.encode(spec).decode()
        reference = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise AssetError(f"tokenizer {name}: {path} cannot be read: {error}") from error
    added = [token["content"] for token in spec.get("added_tokens", ())]
    fast, trouble = _load_fast(lambda: fastokens.Tokenizer.from_json_str(text))
    return _choose(
        name=name,
        texts=sample_texts(added),
        fast=fast,
        trouble=trouble,
        reference=("tokenizers", _hf_ids(reference), _hf_length(reference)),
        anchors=usable_tokens(spec.get("added_tokens", ()), normalises=bool(_normalisers(spec))),
        cuttable=_may_cut(spec.get("added_tokens", ())),
        digest=_digest(text.encode()),
        vocab_size=max(reference.get_vocab(with_added_tokens=True).values()) + 1,
        added_per_text=reference.num_special_tokens_to_add(is_pair=False),
        growth=_growth(spec),
        savings=lambda length: savings_of_json(spec, length),
    )


def _from_ranks(files: TokenizerFiles, rule: TiktokenRule) -> Encoder:
    path = files.path(f"{files.name}.tiktoken")
    if path is None:
        raise AssetError(f"tokenizer {files.name}: no ranks file in {files.folder}")
    special = dict(rule.special_tokens)
    ranks = _read_ranks(path)
    reference = tiktoken.Encoding(
        files.name,
        pat_str=rule.pattern,
        mergeable_ranks=ranks,
        special_tokens=special,
    )
    fast, trouble = _load_fast(
        lambda: fastokens.Tokenizer.from_tiktoken(
            str(path), pattern=rule.pattern, special_tokens=special
        )
    )
    return _choose(
        name=files.name,
        texts=sample_texts(list(special)),
        fast=fast,
        trouble=trouble,
        reference=("tiktoken", _tiktoken_ids(reference), _tiktoken_length(reference)),
        anchors=apart(list(special)),
        cuttable=not any(could_be_cut(token) for token in special),
        digest=_digest(path.read_bytes(), repr(rule).encode()),
        vocab_size=reference.n_vocab,
        added_per_text=0,
        growth=Growth.NONE,
        savings=lambda length: savings_of_ranks(ranks, rule.pattern, list(special), length),
    )


def _choose(
    *,
    name: str,
    texts: Sequence[str],
    fast: Any,
    trouble: str | None,
    reference: tuple[str, Callable[[str], Sequence[int]], Callable[[str], int]],
    anchors: Sequence[str],
    cuttable: bool,
    digest: bytes,
    vocab_size: int,
    added_per_text: int,
    growth: Growth,
    savings: Callable[[Callable[[str], int]], Savings | None],
) -> Encoder:
    library, reference_ids, length = reference
    warnings: list[str] = []
    ways = (_fast_ids, _fast_flat_ids)
    if fast is not None and not all(same_ids(texts, way(fast), reference_ids) for way in ways):
        trouble = "fastokens gives other tokens than the reference"
    if fast is not None and trouble is None:
        library, length = "fastokens", _fast_length(fast)
    else:
        warnings.append(f"{name}: counting with {library}, which is slower: {trouble}")
    cutter = Cutter(search_for(anchors))
    if not cuts_add_up(texts, length, cutter):
        warnings.append(f"{name}: chats are not cut at added tokens: that is not exact here")
        cutter = UNCUT
    chunked = replace(cutter, chunk_chars=CHUNK_CHARS)
    if cuttable and cuts_add_up(texts, length, chunked):
        cutter = chunked
    else:
        warnings.append(f"{name}: long texts are counted in one piece: cutting is not exact here")
    return Encoder(
        name=name,
        library=library,
        length=length,
        vocab_size=vocab_size,
        added_per_text=added_per_text,
        growth=growth,
        savings=None if growth is Growth.UNKNOWN else savings(length),
        cutter=cutter,
        digest=digest,
        warnings=tuple(warnings),
    )


def _digest(*parts: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def _load_fast(load: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return load(), None
    except Exception as error:  # the library's own exception types are not public
        return None, f"fastokens cannot load it ({error})"


def _fast_ids(tokenizer: Any) -> Callable[[str], Sequence[int]]:
    def ids(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]

    return ids


def _fast_length(tokenizer: Any) -> Callable[[str], int]:
    def length(text: str) -> int:
        if len(text) > FLAT_CHARS:
            return len(_fast_flat(tokenizer, text)) // ID_BYTES
        return len(tokenizer.encode(text, add_special_tokens=False))

    return length


def _fast_flat_ids(tokenizer: Any) -> Callable[[str], Sequence[int]]:
    def ids(text: str) -> Sequence[int]:
        return np.frombuffer(_fast_flat(tokenizer, text), "<u4").tolist()  # type: ignore[no-any-return]

    return ids


def _fast_flat(tokenizer: Any, text: str) -> bytes:
    """The ids as bytes, ``ID_BYTES`` each."""
    return tokenizer.encode_batch_flat([text], add_special_tokens=False)[0]  # type: ignore[no-any-return]


def _hf_ids(tokenizer: tokenizers.Tokenizer) -> Callable[[str], Sequence[int]]:
    def ids(text: str) -> Sequence[int]:
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    return ids


def _hf_length(tokenizer: tokenizers.Tokenizer) -> Callable[[str], int]:
    def length(text: str) -> int:
        # Not encode: that holds the GIL for the whole call, seconds for a long text.
        return len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])

    return length


def _tiktoken_ids(encoding: tiktoken.Encoding) -> Callable[[str], Sequence[int]]:
    def ids(text: str) -> Sequence[int]:
        return encoding.encode(text, allowed_special="all")

    return ids


def _tiktoken_length(encoding: tiktoken.Encoding) -> Callable[[str], int]:
    def length(text: str) -> int:
        text.encode()  # a lone surrogate must fail here; tiktoken would replace it in silence
        try:
            return len(encoding.encode_to_numpy(text, allowed_special="all"))
        except ValueError:  # its regex engine gives up on white space a million characters long
            raise UncountableText("run_too_long") from None

    return length


def _read_ranks(path: Path) -> dict[bytes, int]:
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _with_control_looking(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The added tokens, and the plain entries that llama.cpp takes for control tokens."""
    added = list(spec.get("added_tokens", ()))
    known = {token["content"] for token in added}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    vocabulary = spec["model"]["vocab"]
    promoted = [
        {"id": vocabulary[text], "content": text, "special": True, **flags}
        for text in CONTROL_LOOKING
        if text in vocabulary and text not in known
    ]
    return added + promoted


def _may_cut(added_tokens: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no added token can reach across a cut: none takes in its neighbours."""
    return not any(
        token.get("lstrip")
        or token.get("rstrip")
        or token.get("single_word")
        or could_be_cut(token["content"])
        for token in added_tokens
    )


def _growth(spec: Mapping[str, Any]) -> Growth:
    """What the tokenizer does to bytes; UNKNOWN where a pre-tokenizer may add to the text."""
    steps = _flat(spec.get("pre_tokenizer"), "pretokenizers")
    if not all(
        step["type"] in _SPLITTING
        or (step["type"] == "ByteLevel" and not step.get("add_prefix_space", True))
        for step in steps
    ):
        return Growth.UNKNOWN
    normalisers = _normalisers(spec)
    if not normalisers:
        return Growth.NONE
    return Growth.NFC if normalisers == {"NFC"} else Growth.UNKNOWN


def _normalisers(spec: Mapping[str, Any]) -> set[str]:
    return {step["type"] for step in _flat(spec.get("normalizer"), "normalizers")}


def _flat(step: Mapping[str, Any] | None, member: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for item in step[member] for inner in _flat(item, member)]
    return [step]
