from __future__ import annotations

from assets_at_hand import TINY, encoder
from gateway.tokens.anchors import Cutter, search_for
from gateway.tokens.selftest import TEXTS, cuts_add_up, same_ids, sample_texts


def test_texts_are_varied() -> None:
    everything = "".join(TEXTS)
    assert len(set(everything)) > 200
    assert any("\n\n" in text for text in TEXTS)
    assert any(not text.isascii() for text in TEXTS)
    assert len(set(TEXTS)) == len(TEXTS)


def test_own_added_tokens_are_among_them() -> None:
    many = [f"<|t{index}|>" for index in range(1000)]
    assert any("<|t0|>" in text for text in sample_texts(many))
    assert len(sample_texts(many)) < len(TEXTS) + 20


def test_difference_in_one_text_is_seen() -> None:
    def off(text: str) -> list[int]:
        return [1] if "emoji" in text else [0]

    assert same_ids(TEXTS, lambda _text: [0], lambda _text: [0])
    assert not same_ids(TEXTS, lambda _text: [0], off)


def test_encoder_that_raises_is_another_encoder() -> None:
    def raises(_text: str) -> list[int]:
        raise SystemError

    assert not same_ids(TEXTS, raises, raises)


def test_cuts_that_do_not_add_up_are_seen() -> None:
    chunked = Cutter(chunk_chars=99)
    assert cuts_add_up(TEXTS, encoder(TINY).length, chunked)
    assert not cuts_add_up(TEXTS, lambda text: len(text) + 1, chunked)
    assert not cuts_add_up(TEXTS, lambda text: len(text.rstrip("\n")), chunked)
    at_signs = Cutter(search_for(["=="]))
    assert not cuts_add_up(TEXTS, encoder(TINY).length, at_signs)
    assert cuts_add_up(TEXTS, len, at_signs)
