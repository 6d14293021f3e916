from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
import tiktoken
import tiktoken_ext.openai_public as openai_public

import gateway.tokens.libraries as libraries
from assets_at_hand import (
    EVERY_HF_TOKENIZER,
    EVERY_TOKENIZER,
    TINY,
    encoder,
    reference,
    store,
    whole_count,
)
from gateway.tokens.assets import AssetError, TokenizerFiles
from gateway.tokens.encoder import Growth, UncountableText
from gateway.tokens.selftest import TEXTS

BYTE_LEVEL = {"type": "ByteLevel", "trim_offsets": True, "use_regex": False}
SPECIAL_TEXTS = [
    "what is <|endoftext|> and <|im_end|>?",
    "<|im_end|>" * 1000,
    "<｜begin▁of▁sentence｜>hi<｜end▁of▁sentence｜>",
    "<|start|>user<|message|>hi<|end|> </think> <tool_call>",
]


def changed_tiny(tmp_path: Path, **changes: object) -> TokenizerFiles:
    """Our tokenizer with top-level members of its file replaced."""
    spec = json.loads((store().root / TINY / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec | changes))
    return TokenizerFiles("changed", tmp_path)


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
def test_fast_library_passes_the_self_test_and_cuts_are_exact(name: str) -> None:
    one = encoder(name)
    assert one.library == "fastokens"
    assert one.warnings == ()
    assert one.cutter.chunk_chars is not None


@pytest.mark.parametrize("name", EVERY_HF_TOKENIZER)
@pytest.mark.parametrize("text", [*SPECIAL_TEXTS, *TEXTS])
def test_counts_are_those_of_the_reference(name: str, text: str) -> None:
    """Case rows 13 and 14: special-token text counts as the engines count it, as one token."""
    for special in (False, True):
        expected = whole_count(name, text, add_special_tokens=special)
        assert encoder(name).count(text, add_special_tokens=special) == expected


def test_special_token_spelt_in_text_is_one_token() -> None:
    assert encoder(TINY).count("<|im_end|>" * 1000) == 1000


@pytest.mark.assets
@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_tiktoken_rules_are_tiktokens_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_args, **_kwargs: {})
    own = getattr(openai_public, name)()
    rule = store().assets[name].tiktoken
    assert rule is not None
    assert rule.pattern == own["pat_str"]
    assert dict(rule.special_tokens) == own["special_tokens"]
    assert encoder(name).count("<|endoftext|>") == 1


def tiktoken_only(name: str, monkeypatch: pytest.MonkeyPatch) -> libraries.Encoder:
    monkeypatch.setattr(libraries, "_load_fast", lambda _load: (None, "not here"))
    encoder(name)  # skips where it was not fetched
    return libraries.load_encoder(store().resolve(name))


@pytest.mark.assets
def test_tiktoken_counts_where_the_fast_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tiktoken_only("o200k_base", monkeypatch)
    assert slow.library == "tiktoken"
    assert slow.warnings
    for text in [*TEXTS, *SPECIAL_TEXTS]:
        assert slow.count(text) == encoder("o200k_base").count(text)
    with pytest.raises(UncountableText, match="lone_surrogate"):
        slow.count("\ud800")


@pytest.mark.assets
def test_white_space_tiktoken_panics_on_is_a_named_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " " * 1_500_000
    with pytest.raises(UncountableText, match="run_too_long"):
        tiktoken_only("o200k_base", monkeypatch).count(text)
    assert encoder("o200k_base").count(text) > 0  # the fast library has no such limit


@pytest.mark.parametrize("name", EVERY_HF_TOKENIZER)
@pytest.mark.parametrize("size", [libraries.FLAT_CHARS, libraries.FLAT_CHARS + 1])
@pytest.mark.parametrize("run", ["q", "=", "\u0321", "7", "龥", "\U0001d1c0", "<|im_"])
def test_runs_that_cannot_be_cut_count_as_the_reference_says(
    name: str, size: int, run: str
) -> None:
    """Both of the library's calls: the one for long texts gives no list of ids."""
    text = (run * size)[:size]
    assert encoder(name).count(text) == whole_count(name, text)


@pytest.mark.parametrize("way", ["_fast_ids", "_fast_flat_ids"])
def test_mismatch_falls_back_loudly(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, way, lambda _tokenizer: lambda text: [len(text)])
    one = libraries.load_encoder(store().resolve(TINY))
    assert one.library == "tokenizers"
    assert "other tokens" in one.warnings[0]
    for text in [*TEXTS, *SPECIAL_TEXTS]:
        assert one.count(text) == whole_count(TINY, text)


def test_fast_library_that_cannot_load_falls_back_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.fastokens.Tokenizer, "from_json_str", None, raising=False)
    one = libraries.load_encoder(store().resolve(TINY))
    assert one.library == "tokenizers"
    assert "cannot load" in one.warnings[0]


def test_library_that_dies_in_the_self_test_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_text: str) -> list[int]:
        raise RuntimeError

    monkeypatch.setattr(libraries, "_fast_ids", lambda _tokenizer: dies)
    assert libraries.load_encoder(store().resolve(TINY)).library == "tokenizers"


def test_unsafe_cuts_are_noticed(tmp_path: Path) -> None:
    """GPT-2's own split pattern looks ahead over newlines: cut counts differ from whole ones."""
    byte_level = {**BYTE_LEVEL, "add_prefix_space": False, "use_regex": True}
    one = libraries.load_encoder(changed_tiny(tmp_path, pre_tokenizer=byte_level))
    assert one.cutter.chunk_chars is None
    assert "one piece" in one.warnings[-1]


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_greedy_added_tokens_forbid_cuts(tmp_path: Path, flag: str) -> None:
    spec = json.loads((store().root / TINY / "tokenizer.json").read_text())
    spec["added_tokens"][-1][flag] = True
    files = changed_tiny(tmp_path, added_tokens=spec["added_tokens"])
    assert libraries.load_encoder(files).cutter.chunk_chars is None


def test_saved_truncation_and_padding_do_not_count(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    files = changed_tiny(tmp_path, truncation=truncation, padding=padding)
    text = "one two three four five six seven"
    assert libraries.load_encoder(files).count(text) == whole_count(TINY, text) > 4


def test_bos_is_counted_only_where_special_tokens_are_added(tmp_path: Path) -> None:
    """Case row 15: a text that begins with the BOS has two of them with special tokens on."""
    processor = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        },
    }
    one = libraries.load_encoder(changed_tiny(tmp_path, post_processor=processor))
    assert one.added_per_text == 1
    assert one.count("<|endoftext|>", add_special_tokens=False) == 1
    assert one.count("<|endoftext|>", add_special_tokens=True) == 2


@pytest.mark.parametrize(
    ("changes", "growth"),
    [
        ({}, Growth.NFC),
        ({"normalizer": None}, Growth.NONE),
        ({"normalizer": {"type": "Sequence", "normalizers": []}}, Growth.NONE),
        ({"normalizer": {"type": "NFKC"}}, Growth.UNKNOWN),
        ({"normalizer": {"type": "Prepend", "prepend": "x"}}, Growth.UNKNOWN),
        ({"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}}, Growth.UNKNOWN),
    ],
)
def test_what_a_bound_may_rest_on(
    tmp_path: Path, changes: dict[str, object], growth: Growth
) -> None:
    assert libraries.load_encoder(changed_tiny(tmp_path, **changes)).growth is growth


def test_normaliser_can_be_left_out() -> None:
    """llama.cpp applies none: decomposed text costs more there."""
    text = "e\u0301" * 10
    assert encoder(TINY, normalise=False).count(text) > encoder(TINY).count(text)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "nothing"}}'])
def test_unreadable_file_is_an_asset_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(AssetError, match=re.escape(str(tmp_path))):
        libraries.load_encoder(TokenizerFiles("broken", tmp_path))


def test_vocabulary_ends_after_the_highest_id() -> None:
    assert encoder(TINY).vocab_size == max(reference(TINY).get_vocab().values()) + 1


def test_threads_count_as_one_does() -> None:
    """Case row 16: one shared tokenizer, many threads, no errors, the serial counts."""
    texts = [text * 50 for text in TEXTS]
    serial = [encoder(TINY).count(text) for text in texts]
    wrong: list[str] = []

    def work(offset: int) -> None:
        for index in range(200):
            at = (index + offset) % len(texts)
            if encoder(TINY).count(texts[at], add_special_tokens=bool(index % 2)) != serial[at]:
                wrong.append(texts[at][:20])

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("name", [TINY, pytest.param("qwen3", marks=pytest.mark.assets)])
@pytest.mark.parametrize(
    "text",
    ["a" * 10**6, "^" * 10**6, "_" * 500_000, " " * 10**6, "\n" * 10**6, "中" * 300_000,
     "a" + "\u0301" * 100_000],
    ids=["a", "caret", "underscore", "spaces", "newlines", "cjk", "combining"],
)  # fmt: skip
def test_long_runs_end_in_time(name: str, text: str) -> None:
    """Case row 17: no quadratic time, no overflow; two seconds were measured on a busy machine."""
    started = time.process_time()
    assert 0 < encoder(name).count(text) <= 3 * len(text.encode())
    assert time.process_time() - started < 20


def test_reading_ranks_agrees_with_tiktoken(tmp_path: Path) -> None:
    path = tmp_path / "x.tiktoken"
    path.write_bytes(b"YQ== 0\nYg== 1\nYWI= 2\n")
    ranks = libraries._read_ranks(path)
    assert ranks == {b"a": 0, b"b": 1, b"ab": 2}
    one = tiktoken.Encoding("x", pat_str=".+", mergeable_ranks=ranks, special_tokens={})
    assert one.encode("ab") == [2]
