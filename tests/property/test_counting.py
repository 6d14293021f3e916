"""Counting in parts is counting whole, and no text exceeds its bound, on any text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assets_at_hand import (
    EVERY_HF_TOKENIZER,
    EVERY_TOKENIZER,
    TINY,
    counter,
    encoder,
    reference,
    whole_count,
)
from gateway.tokens.chunks import chunks
from gateway.tokens.encoder import Encoder, Means
from gateway.tokens.recall import ENTRY_BYTES, CountCache
from gateway.types import AtLeast, ChatPrompt, Counted, TextPrompt, Unverifiable

RELAXED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Pieces that meet at a cut in every combination: letters, marks, white space, joiners, specials.
PIECES = st.sampled_from(
    ["a", "B", "zz", "é", "e\u0301", "\u0301", "中", "한", "1", "23", " ", "  ", "\n", "\r\n",
     "\n\n", "\t", "\xa0", "\u2028", "\u3000", "/", "//", ".", "...", "'s", "'", "_", "-", "(",
     "\U0001d1c0", "😀", "\u200d", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<|",
     "|>", "\x00"]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(PIECES, max_size=60).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)


def finely_cut(one: Encoder, size: int = 5) -> Encoder:
    """One that cuts short texts where others cut long ones."""
    return replace(one, cutter=replace(one.cutter, smallest=size, chunk_chars=size))


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
@RELAXED
@given(text=TEXTS, size=st.integers(1, 30))
def test_parts_add_up_to_the_whole(name: str, text: str, size: int) -> None:
    one = encoder(name)
    parts = list(chunks(text, size))
    assert "".join(parts) == text
    assert sum(one.length(part) for part in parts) == one.length(text)


@pytest.mark.parametrize("name", EVERY_HF_TOKENIZER)
@RELAXED
@given(text=TEXTS)
def test_count_is_the_references(name: str, text: str) -> None:
    one = finely_cut(encoder(name))
    assert one.count(text) == whole_count(name, text)


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
@RELAXED
@given(text=TEXTS, smallest=st.integers(1, 30))
def test_pieces_add_up_to_the_whole(name: str, text: str, smallest: int) -> None:
    one = encoder(name)
    for cutter in (
        replace(one.cutter, smallest=smallest, chunk_chars=7),
        replace(one.cutter, smallest=smallest, chunk_chars=None),
    ):
        pieces = list(cutter.pieces(text))
        assert "".join(pieces) == text
        assert sum(one.length(piece) for piece in pieces) == one.length(text)


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
@RELAXED
@given(text=TEXTS, more=TEXTS, size=st.integers(1, 30))
def test_appending_changes_the_last_piece_only(name: str, text: str, more: str, size: int) -> None:
    cutter = finely_cut(encoder(name), size).cutter
    before = list(cutter.pieces(text))[:-1]
    assert list(cutter.pieces(text + more))[: len(before)] == before


@pytest.mark.parametrize("name", EVERY_HF_TOKENIZER)
@RELAXED
@given(texts=st.lists(TEXTS, min_size=1, max_size=6), room=st.integers(1, 40))
def test_what_is_remembered_changes_no_count(name: str, texts: list[str], room: int) -> None:
    """However little is kept, and whatever other tokenizers and tenants put there."""
    cache = CountCache(room * ENTRY_BYTES, b"secret", smallest=1)
    one = finely_cut(encoder(name))
    for text in [*texts, "".join(texts), *texts]:
        means = Means(cache.of_tenant("a"))
        assert one.count(text, means=means) == whole_count(name, text)
        other = Means(cache.of_tenant("a"))
        bytes_instead = replace(one, length=lambda t: len(t.encode()), digest=b"bytes")
        assert bytes_instead.count(text, means=other) == len(text.encode())


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
@RELAXED
@given(text=TEXTS)
def test_bound_holds(name: str, text: str) -> None:
    bound = encoder(name).upper_bound(text, add_special_tokens=True)
    assert bound is not None
    assert encoder(name).count(text, add_special_tokens=True) <= bound


@RELAXED
@given(text=TEXTS, limit=st.integers(0, 60))
def test_early_stop_tells_the_truth(text: str, limit: int) -> None:
    one = counter()
    small = replace(one, encoder=finely_cut(one.encoder))
    exact = whole_count(TINY, text)
    answer = small.count(TextPrompt((text,)), limit)
    if isinstance(answer, Counted):
        assert answer.items == (exact,)
    else:
        assert isinstance(answer, AtLeast)
        assert limit < answer.longest <= exact
    assert isinstance(answer, Counted) or exact > limit


@RELAXED
@given(texts=st.lists(TEXTS, min_size=2, max_size=12))
def test_two_threads_agree_with_one(texts: list[str]) -> None:
    serial = [whole_count(TINY, text) for text in texts]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(encoder(TINY).count, texts)) == serial


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "tool_calls", "function", "name", "arguments",
                 "parameters", "input", "output", "summary", "id", "effort", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip
MEMBERS = ["messages", "input", "tools", "system", "instructions", "reasoning", "tool_choice",
           "chat_template_kwargs", "reasoning_effort", "thinking", "output_config",
           "documents", "continue_final_message"]  # fmt: skip


@RELAXED
@given(
    engine=st.sampled_from(["vllm", "sglang", "llama_cpp", "openai"]),
    dialect=st.sampled_from(["openai_chat", "openai_responses", "anthropic_messages"]),
    body=st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=4),
    user=st.booleans(),
)
def test_no_request_breaks_the_counter(
    engine: str, dialect: str, body: dict[str, object], user: bool
) -> None:
    turn = [{"role": "user", "content": "hi"}]
    whole = {**body, "messages": turn, "input": turn} if user else body
    answer = counter(engine=engine).count(ChatPrompt(dialect, whole))
    assert isinstance(answer, Counted | Unverifiable)


def test_oracle_is_the_reference_library() -> None:
    assert type(reference(TINY)).__module__.startswith("tokenizers")
