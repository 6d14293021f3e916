"""Normal form: what may differ between a text and its copy without hiding the copy."""

from __future__ import annotations

import pytest

from gateway.core.fingerprint.normal import Normaliser, normal_slices


def normal(text):
    return Normaliser().feed(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Plain Words", b"plain words"),
        ("  **Bold**,\n> quoted\t", b"bold quoted "),
        ('{"a": "b-1"}', b"a b 1 "),
        ("", b""),
        ("...", b""),
        ("Zürich—Ärger", "zÜrich—Ärger".replace("Ü", "ü").encode()),
        ("日本語", "日本語".encode()),
    ],
)
def test_forms(text, expected):
    assert normal(text) == expected


def test_a_long_text_is_treated_as_a_short_one():
    text = 'Some "words", and\n\n more -- of them. ' * 50
    whole = normal(text)
    one_by_one = Normaliser()
    assert whole == b"".join(one_by_one.feed(letter) for letter in text)
    assert b"  " not in whole
    assert not whole.startswith(b" ")


def test_segments_are_parted():
    assert b"".join(normal_slices(["one", "two", "", "three"])) == b"one two three "


def test_half_a_surrogate_pair_is_no_error():
    assert normal("a\ud83d b") == b"a" + "\ud83d".encode("utf-8", "surrogatepass") + b" b"
