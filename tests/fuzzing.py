"""Byte strings near to what was really sent: seeds, changed a few times."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

MOST_CHANGES = 6


def changed(seeds: Sequence[bytes], tokens: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """A seed, or nothing, of which pieces were cut out, repeated, or replaced by tokens."""
    place = st.integers(0, 2**16)
    piece = st.sampled_from(list(tokens)) | st.binary(max_size=8)
    change = st.tuples(place, st.integers(0, 40), piece, st.sampled_from(["put", "cut", "double"]))
    return st.builds(
        with_changes, st.sampled_from([b"", *seeds]), st.lists(change, max_size=MOST_CHANGES)
    )


def with_changes(seed: bytes, changes: Sequence[tuple[int, int, bytes, str]]) -> bytes:
    data = seed
    for place, length, piece, how in changes:
        start = place % (len(data) + 1)
        end = start + length
        if how == "put":
            data = data[:start] + piece + data[start:]
        elif how == "cut":
            data = data[:start] + piece + data[end:]
        else:
            data = data[:end] + data[start:end] + data[end:]
    return data
