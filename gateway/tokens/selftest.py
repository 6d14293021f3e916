"""Trying a tokenizer before it is trusted: against the reference library, and cut against whole.

The texts are fixed and varied: prose, code, scripts without spaces, runs, normalisation traps,
white space in every position, and each tokenizer's own added tokens in the middle of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gateway.tokens.anchors import Cutter

SMALL_CHUNK = 40  # characters; small, so that the fixed texts are cut everywhere they can be

TEXTS: tuple[str, ...] = (
    "",
    " ",
    "\n",
    "Hello, world! It's a test; they'll see we've done I'M NOT DON'T 's 'S.",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": None}\n\n\n# end\n\tif x:\n\t\tpass\n" * 4,
    "for (int i=0;i<n;++i) { a[i] += b->c ? 1 : 0; } // done\r\n\r\n  /* x */\r\n" * 4,
    "line one \nline two\t\n \n  indented\n\n\n\nafter four\n / slash\n/path/to\n//x\nend  ",
    "a  b   c    d\n  e \n\n f\r\rg\x0bh\x0ci\x85j\u2028k\u2029l\u3000m\xa0n",
    "中文没有空格,混合English和数字12345。日本語です。" * 3,
    "한국어 텍스트 예시\n中文第二行\n第三行。\n" * 3,
    "Привет мир! Ελληνικά κείμενο. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "😀😃👩‍👩‍👧‍👦🏳️‍🌈 emoji ⚡ and ﷺ ﷽ ½ ² ㎏ ﬁ Å Å",
    "e\u0301 a\u0300\u0301 \u1d1c0 \U0001d1c0 \u0958 \u2126 \u1112\u1161\u11ab",
    "x\u0323\u0307\n\u0301y \u0344 \u0f71\u0f72",
    "1234567890 3.14159 0xDEADBEEF 1,000,000 2026-11-30T18:43:00Z ①②③ ٣٤٥",
    "a" * 300 + " " + "=" * 150 + "\n" + "-" * 99 + " " * 120 + "\n" * 60 + "\t" * 33 + "x",
    "U29tZSBiYXNlNjQgdGV4dCB3aXRob3V0IHNwYWNlcyBhdCBhbGw/Kys9PQ==" * 4,
    '{"key":"va\\"lue\\u00e9","nested":{"a":[true,false,null]}}' * 4,
    '<div class="x">a &amp; b</div>\n<!-- c -->\n<|not_special|> <| im_start |> [INST] </s>',
    "\u200b\u200d\ufeff\u00ad zero width \x00\x01\x7f control \ufffd end",
    "CamelCaseIdentifier snake_case_name SCREAMING_CASE kebab-case-x $var @user #tag %d 50% A/B",
    "word " * 40 + "\n" + "A Ab Abc ABC aB aBC 1A A1 a1b2 \n" * 8,
)


def sample_texts(added_tokens: Sequence[str]) -> list[str]:
    """The fixed texts, plus texts with this tokenizer's added tokens in awkward company."""
    picked = added_tokens[:: max(1, len(added_tokens) // 12)][:12]
    mixed = [f"a{token}b {token} c\n{token}\n{token}{token}x\n  {token}" for token in picked]
    return [*TEXTS, *mixed, "\n".join(TEXTS), " ".join(TEXTS)]


def same_ids(
    texts: Iterable[str],
    one: Callable[[str], Sequence[int]],
    other: Callable[[str], Sequence[int]],
) -> bool:
    """Whether two encoders give the same ids for every text. Never raises."""
    try:
        return all(list(one(text)) == list(other(text)) for text in texts)
    except Exception:  # whatever a library dies of, it is not the one to use
        return False


def cuts_add_up(texts: Iterable[str], length: Callable[[str], int], cutter: Cutter) -> bool:
    """Whether the counts of each text's pieces sum to the whole text's, cut wherever it can be."""
    fine = [
        replace(cutter, smallest=size, chunk_chars=cutter.chunk_chars and size)
        for size in (1, SMALL_CHUNK)
    ]
    return all(
        sum(length(piece) for piece in one.pieces(text)) == length(text)
        for text in texts
        for one in fine
    )
