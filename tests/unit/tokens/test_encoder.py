from __future__ import annotations

import pytest

from assets_at_hand import EVERY_HF_TOKENIZER, EVERY_TOKENIZER, TINY, encoder, whole_count
from gateway.tokens.anchors import UNCUT, Cutter
from gateway.tokens.encoder import (
    LONG_PIECE,
    Encoder,
    Growth,
    Means,
    NeedsPatience,
    UncountableText,
)
from gateway.tokens.recall import CountCache

PLAIN = Encoder(name="bytes", library="test", length=lambda text: len(text.encode()), vocab_size=9)
GROWING = "\U0001d1c0" * 1000  # its NFC form has three times its bytes


def bytes_encoder(**changes: object) -> Encoder:
    values = {"name": "bytes", "library": "test", "vocab_size": 256, "growth": Growth.NONE}
    length = {"length": lambda text: len(text.encode())}
    return Encoder(**{**length, **values, **changes})  # type: ignore[arg-type]


def test_special_tokens_are_added_once_a_text_not_once_a_chunk() -> None:
    one = bytes_encoder(added_per_text=2, cutter=Cutter(chunk_chars=4))
    assert one.count("word word word", add_special_tokens=True) == 14 + 2
    assert one.count("word word word") == 14


def test_counting_stops_after_the_first_chunk_that_passes_the_limit() -> None:
    seen: list[str] = []

    def length(text: str) -> int:
        seen.append(text)
        return len(text)

    one = bytes_encoder(length=length, cutter=Cutter(chunk_chars=5))
    tally = one.count_up_to("word word word word word", 10)
    assert not tally.complete
    assert 10 < tally.tokens < 24
    assert len(seen) == 2


def test_limit_itself_is_not_passed() -> None:
    one = bytes_encoder(cutter=Cutter(chunk_chars=5))
    assert one.count_up_to("word word", 9).complete
    assert one.count_up_to("word word", 9).tokens == 9


def test_last_chunk_makes_a_count_complete_even_over_the_limit() -> None:
    tally = bytes_encoder().count_up_to("abc", 1)
    assert (tally.tokens, tally.complete) == (3, True)


def test_without_safe_cuts_the_text_is_counted_in_one_call() -> None:
    calls: list[str] = []
    one = bytes_encoder(length=lambda text: calls.append(text) or 1, cutter=UNCUT)
    one.count("word " * 100_000)
    assert len(calls) == 1


@pytest.mark.parametrize("growth", [Growth.NONE, Growth.NFC])
def test_ascii_is_bounded_by_its_length(growth: Growth) -> None:
    one = bytes_encoder(growth=growth, added_per_text=1)
    assert one.upper_bound("abc") == 3
    assert one.upper_bound("abc", add_special_tokens=True) == 4


def test_nfc_text_is_bounded_by_its_bytes_and_other_text_by_three_times_them() -> None:
    one = bytes_encoder(growth=Growth.NFC)
    assert one.upper_bound("中文") == 6
    assert one.upper_bound("e\u0301") == 9


def test_unknown_normaliser_and_text_that_is_no_unicode_have_no_bound() -> None:
    assert bytes_encoder(growth=Growth.UNKNOWN).upper_bound("abc") is None
    assert bytes_encoder().upper_bound("\ud800") is None


def test_lone_surrogate_is_named() -> None:
    with pytest.raises(UncountableText, match="lone_surrogate"):
        encoder(TINY).count("a\ud800b")


@pytest.mark.parametrize("name", EVERY_HF_TOKENIZER)
def test_bound_holds_where_bytes_alone_would_not(name: str) -> None:
    tokens = whole_count(name, GROWING)
    bound = encoder(name).upper_bound(GROWING)
    assert bound is not None
    assert tokens <= bound
    if encoder(name).growth is Growth.NFC:
        assert tokens > len(GROWING.encode())  # the trap is real: bytes are no bound here


def test_pieces_seen_before_are_not_counted_again() -> None:
    seen: list[str] = []
    cache = CountCache(2**20, b"secret")
    one = bytes_encoder(
        length=lambda text: seen.append(text) or len(text), cutter=Cutter(chunk_chars=300)
    )
    history = " ".join(f"{index}w" for index in range(300))
    for text in (history, history + " and more" * 99):
        assert one.count(text, means=Means(cache.of_tenant("a"))) == len(text)
    assert sum(len(text) for text in seen) < 2 * len(history) + 400
    seen.clear()
    assert one.count(history, means=Means(cache.of_tenant("b"))) == len(history)
    assert sum(len(text) for text in seen) == len(history)


def test_a_lone_surrogate_is_named_where_counts_are_remembered() -> None:
    means = Means(CountCache(2**20, b"secret").of_tenant("a"))
    with pytest.raises(UncountableText, match="lone_surrogate"):
        encoder(TINY).count("\ud800" * 300, means=means)


UNCUTTABLE = "x" * (LONG_PIECE + 1)
HURRIED = Means(patient=False)


def test_a_long_piece_takes_patience() -> None:
    one = bytes_encoder(cutter=Cutter(chunk_chars=5))
    with pytest.raises(NeedsPatience):
        one.count(UNCUTTABLE, means=HURRIED)
    assert one.count(UNCUTTABLE) == len(UNCUTTABLE)
    assert one.count(UNCUTTABLE[1:], means=HURRIED) == LONG_PIECE


def test_what_else_there_is_may_settle_it_without_patience() -> None:
    one = bytes_encoder(cutter=Cutter(chunk_chars=5))
    text = UNCUTTABLE + " word word"
    tally = one.count_up_to(text, 9, means=HURRIED)
    assert tally.tokens == 10
    assert not tally.complete
    with pytest.raises(NeedsPatience):
        one.count_up_to(text, 10, means=HURRIED)


def test_a_long_piece_that_is_remembered_takes_none() -> None:
    cache = CountCache(2**20, b"secret")
    one = bytes_encoder()
    count = one.count(UNCUTTABLE, means=Means(cache.of_tenant("a")))
    hurried = Means(cache.of_tenant("a"), patient=False)
    assert one.count(UNCUTTABLE, means=hurried) == count


@pytest.mark.parametrize("name", EVERY_TOKENIZER)
def test_a_million_spaces_are_counted_or_refused_never_a_panic(name: str) -> None:
    spaces = " " * 1_500_000
    assert encoder(name).count(f"a{spaces}b") > 1000


def test_a_library_that_panics_makes_a_text_uncountable() -> None:
    def panics(_text: str) -> int:
        raise type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})("boom")

    with pytest.raises(UncountableText, match="run_too_long"):
        bytes_encoder(length=panics).count("a")


def test_an_interrupt_is_no_panic() -> None:
    def interrupted(_text: str) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bytes_encoder(length=interrupted).count("a")
