import pytest

from gateway.simulate.pages import PageMemory, PoolExhausted
from gateway.simulate.prefixes import PrefixCache


def filled(tokens: list[int], salt: str = "a", *, honours: bool = True) -> PrefixCache:
    memory = PageMemory(40, 4)
    cache = PrefixCache(memory, enabled=True, honours_salt=honours)
    table = cache.allocate(memory.pages_for(len(tokens)))
    memory.write(table, 0, "first", tokens)
    cache.adopt(salt, tokens, table, 0)
    return cache


def matched(cache: PrefixCache, salt: str, tokens: list[int]) -> int:
    match = cache.match(salt, tokens)
    cache.unpin(match)
    return len(match.pages)


def test_whole_pages_of_a_common_beginning_match():
    cache = filled(list(range(10)))
    assert cache.held_pages == 2
    assert matched(cache, "a", list(range(20))) == 2
    assert matched(cache, "a", [*range(7), 99, 8, 9]) == 1
    assert matched(cache, "a", [99, *range(1, 10)]) == 0


def test_one_token_is_always_left_to_prefill():
    cache = filled(list(range(8)))
    assert matched(cache, "a", list(range(8))) == 1
    assert matched(cache, "a", list(range(9))) == 2


def test_the_same_page_after_another_beginning_does_not_match():
    cache = filled([*range(4), 7, 7, 7, 7])
    assert matched(cache, "a", [9, 9, 9, 9, 7, 7, 7, 7, 1]) == 0


def test_salts_separate_unless_they_are_not_honoured():
    tokens = list(range(9))
    assert matched(filled(tokens), "b", tokens) == 0
    cache = filled(tokens, honours=False)
    match = cache.match("b", tokens)
    assert len(match.pages) == 2
    assert match.foreign
    cache.unpin(match)
    assert not cache.match("a", tokens).foreign


def test_eviction_spares_pinned_pages():
    cache = filled(list(range(40)))
    pinned = cache.match("a", list(range(9)))
    assert len(cache.allocate(8)) == 8
    assert cache.held_pages == 2
    with pytest.raises(PoolExhausted):
        cache.allocate(1)
    cache.unpin(pinned)
    assert len(cache.allocate(2)) == 2


def test_adopting_what_is_known_already_frees_the_copy():
    memory = PageMemory(40, 4)
    cache = PrefixCache(memory, enabled=True, honours_salt=True)
    for _ in range(3):
        cache.adopt("", list(range(8)), cache.allocate(2), 0)
    assert cache.held_pages == 2
    assert memory.free_pages == 8
    cache.flush()
    assert memory.free_pages == 10


def test_a_disabled_cache_holds_nothing():
    memory = PageMemory(40, 4)
    cache = PrefixCache(memory, enabled=False, honours_salt=True)
    cache.adopt("", list(range(8)), cache.allocate(2), 0)
    assert memory.free_pages == 10
