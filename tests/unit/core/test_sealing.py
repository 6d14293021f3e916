"""What is sealed is opened by who holds the key, and changed by nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sealing import NONCE_BYTES, Seal

SEAL = Seal(b"secret", "standings")
NONCE = bytes(range(NONCE_BYTES))


@given(st.binary(max_size=300), st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_what_is_closed_is_opened(data, nonce):
    assert SEAL.opened(SEAL.closed(data, nonce)) == data


@given(st.data())
def test_whatever_was_changed_is_not_opened(data):
    sealed = bytearray(SEAL.closed(b"a case file", NONCE))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="not sealed"):
        SEAL.opened(bytes(sealed))


@pytest.mark.parametrize("other", [Seal(b"another", "standings"), Seal(b"secret", "incidents")])
def test_another_secret_or_purpose_opens_nothing(other):
    sealed = SEAL.closed(b"a case file", NONCE)
    with pytest.raises(ValueError, match="not sealed"):
        other.opened(sealed)
    assert other.fingerprint != SEAL.fingerprint


@given(st.binary(max_size=60))
def test_what_nobody_sealed_is_not_opened(data):
    with pytest.raises(ValueError, match="not sealed"):
        SEAL.opened(data)


def test_text_does_not_show_and_no_two_are_alike():
    text = b"planted " * 100
    one, other = SEAL.closed(text, NONCE), SEAL.closed(text, bytes(NONCE_BYTES))
    assert b"planted" not in one
    assert one[32:] != other[32:]
    with pytest.raises(ValueError, match="nonce"):
        SEAL.closed(text, b"short")
