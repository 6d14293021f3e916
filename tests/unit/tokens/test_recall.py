from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.tokens.recall import ENTRY_BYTES, SMALLEST_REMEMBERED, CountCache, Recall

LONG = "a" * SMALLEST_REMEMBERED


def recall(cache: CountCache, tenant: str = "a") -> Recall:
    one = cache.of_tenant(tenant)
    assert one is not None
    return one


def remembered(one: Recall, piece: str, tokenizer: bytes = b"t") -> int | None:
    digest = one.digest(piece, tokenizer)
    assert digest is not None
    return one.get(digest)


def remember(one: Recall, piece: str, count: int, tokenizer: bytes = b"t") -> None:
    digest = one.digest(piece, tokenizer)
    assert digest is not None
    one.put(digest, count)


def test_a_count_is_remembered_for_its_text_tokenizer_and_tenant_alone() -> None:
    cache = CountCache(2**20, b"secret")
    remember(recall(cache), LONG, 7)
    assert remembered(recall(cache), LONG) == 7
    assert remembered(recall(cache), LONG + "b") is None
    assert remembered(recall(cache), LONG, b"u") is None
    assert remembered(recall(cache, "b"), LONG) is None


def test_digests_need_the_secret() -> None:
    one, other = (recall(CountCache(2**20, secret)).digest(LONG, b"t") for secret in (b"1", b"2"))
    assert one != other
    assert one is not None
    assert len(one) == 16


def test_zero_is_a_count() -> None:
    cache = CountCache(2**20, b"secret")
    remember(recall(cache), LONG, 0)
    assert remembered(recall(cache), LONG) == 0


def test_short_pieces_are_not_looked_up() -> None:
    assert recall(CountCache(2**20, b"secret")).digest(LONG[1:], b"t") is None


def test_hits_and_misses_are_told_apart() -> None:
    cache = CountCache(2**20, b"secret")
    one = recall(cache)
    assert remembered(one, LONG) is None
    remember(one, LONG, 1)
    assert remembered(one, LONG) == 1
    assert (one.hits, one.misses) == (1, 1)


def test_the_least_recently_used_goes_first() -> None:
    cache = CountCache(2 * ENTRY_BYTES, b"secret")
    one = recall(cache)
    remember(one, LONG + "1", 1)
    remember(one, LONG + "2", 2)
    assert remembered(one, LONG + "1") == 1
    remember(one, LONG + "3", 3)
    assert len(cache) == 2
    assert [remembered(one, LONG + which) for which in "123"] == [1, None, 3]


@pytest.mark.parametrize("room", [0, ENTRY_BYTES - 1])
def test_without_room_nothing_is_remembered(room: int) -> None:
    assert CountCache(room, b"secret").of_tenant("a") is None


def test_memory_keeps_to_its_bound() -> None:
    bound = 4 * 2**20
    cache = CountCache(bound, b"secret")
    one = recall(cache)
    tracemalloc.start()
    try:
        for index in range(3 * bound // ENTRY_BYTES):
            one.put(index.to_bytes(16, "big"), 10_000 + index)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bound / 2 < held <= bound


def test_threads_may_share_it() -> None:
    cache = CountCache(100 * ENTRY_BYTES, b"secret")

    def work(seed: int) -> bool:
        one = recall(cache)
        for index in range(5000):
            number = (index * seed) % 300
            digest = number.to_bytes(16, "big")
            if one.get(digest) not in (None, number):
                return False
            one.put(digest, number)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, (1, 7, 11, 13)))
    assert len(cache) == 100
