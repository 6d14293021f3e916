"""The longest beginning an earlier prompt shares, without keeping text."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128

from gateway.core import prefixes
from gateway.core.prefixes import STEP, PrefixMemory, reach, seed

SEED = seed(b"secret", "a")
ENDS = [reach(known) for known in range(400)]


def chain(text, seed):
    return prefixes.chain([text], seed)


def test_steps_are_short_at_first_and_stay_short_beside_what_lies_before_them():
    assert ENDS[:3] == [STEP, 2 * STEP, 3 * STEP]
    for begin, end in itertools.pairwise(ENDS):
        assert end - begin <= max(STEP, begin / 32)
    assert len(chain(bytes(4_000_000), SEED)) < 330


def test_known_bytes_is_an_upper_bound_within_one_step():
    memory = PrefixMemory(1000)
    text = bytes(range(256)) * 200
    memory.remember(chain(text, SEED))
    for shared in (0, 1, STEP - 1, STEP, STEP + 1, 5 * STEP + 17, 30_000, len(text) - 1):
        other = text[:shared] + bytes([text[shared] ^ 1]) * (2 * STEP)
        bound = memory.known_bytes(chain(other, SEED))
        assert shared <= bound <= shared + max(STEP, shared / 32)
    assert memory.known_bytes(chain(text, SEED)) >= len(text)


def test_tenants_share_nothing():
    memory = PrefixMemory(100)
    text = b"x" * (3 * STEP)
    memory.remember(chain(text, SEED))
    assert memory.known_bytes(chain(text, SEED)) == 4 * STEP
    assert memory.known_bytes(chain(text, seed(b"secret", "b"))) == STEP


def test_processes_share_nothing():
    assert seed(b"secret", "a") != seed(b"other", "a")


def test_memory_is_bounded_and_the_oldest_goes_first():
    memory = PrefixMemory(2)
    oldest, used, new = (chain(letter * (2 * STEP), SEED) for letter in (b"o", b"u", b"n"))
    for chained in (used, oldest, used, new):
        memory.remember(chained)
    assert memory.known_bytes(new) == memory.known_bytes(used) == 3 * STEP
    assert memory.known_bytes(oldest) == STEP


def test_the_last_steps_are_remembered_up_to_the_capacity():
    memory = PrefixMemory(8)
    chains = [chain(bytes([number]) * (2 * STEP), SEED) for number in range(40)]
    for place, chained in enumerate(chains):
        memory.remember(chained)
        last = chains[max(0, place - 3) : place + 1]
        assert all(memory.known_bytes(each) == 3 * STEP for each in last)
        known = sum(memory.known_bytes(each) == 3 * STEP for each in chains)
        assert known <= 2 * 4 + 1


def test_what_is_known_is_known_though_its_beginning_was_forgotten():
    memory = PrefixMemory(1)
    chained = chain(b"x" * (9 * STEP), SEED)
    memory.remember(chained[4:])
    assert memory.known_bytes(chained) == 10 * STEP


@given(st.binary(max_size=4 * STEP), st.binary(max_size=2 * STEP))
def test_a_longer_text_extends_the_chain(text, more):
    shorter = chain(text, SEED)
    assert chain(text + more, SEED)[: len(shorter)] == shorter


@given(st.lists(st.binary(max_size=3 * STEP), max_size=6))
def test_how_a_text_is_divided_does_not_count(parts):
    assert prefixes.chain(parts, SEED) == chain(b"".join(parts), SEED)


def test_each_digest_is_of_all_the_text_before_it():
    text = bytes(range(251)) * 9
    expected = [xxh3_128(text[:end], seed=SEED).digest() for end in ENDS if end <= len(text)]
    assert chain(text, SEED) == expected
