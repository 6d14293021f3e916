"""Hashes of texts as bytes, in parts that fit."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.core.fingerprint.batch import MOST_BYTES, Text, hashes, parts, read, written
from gateway.core.fingerprint.index import Kind

PLACE = ("a", "http://a")


def some(count, seed=1):
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


@pytest.mark.parametrize("count", [0, 1, MOST_BYTES // 8, MOST_BYTES // 8 + 1, 30_000])
def test_a_texts_hashes_arrive_whole_and_in_parts_that_fit(count):
    windows, atoms = some(count), some(7, 2)
    texts = list(parts(PLACE, "tag", Kind.ANSWER, windows, atoms))
    assert all(text.count * 8 <= MOST_BYTES for text in texts)
    batch = read(written("r", 5, texts))
    assert (batch.replica, batch.before) == ("r", 5)
    assert {(t.backend, t.url, t.tenant, t.kind) for t in batch.texts} == {(*PLACE, "tag", 1)}
    assert np.array_equal(np.concatenate([hashes(t.windows) for t in batch.texts]), windows)
    assert np.array_equal(np.concatenate([hashes(t.atoms) for t in batch.texts]), atoms)


@pytest.mark.parametrize("kind, windows", [(0, b"short"), (9, b"")])  # noqa: PT006
def test_what_is_no_batch_is_refused(kind, windows):
    with pytest.raises(ValueError, match="not a batch"):
        read(written("r", 0, [Text(*PLACE, "tag", kind, windows, b"")]))
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's own words
        read(b"\x90")
