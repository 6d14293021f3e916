"""The longest beginning an earlier prompt shares, without keeping text."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.prefixes import DIGEST, STEP, PrefixMemory, chain, reach, seed

SEED = seed(b"secret", "a")
ENDS = [reach(known) for known in range(400)]


def test_steps_are_short_at_first_and_stay_short_beside_what_lies_before_them():
    assert ENDS[:3] == [STEP, 2 * STEP, 3 * STEP]
    for begin, end in itertools.pairwise(ENDS):
        assert end - begin <= max(STEP, begin / 32)
    assert len(chain(bytes(4_000_000), SEED)) // DIGEST < 330


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
    old, new = b"o" * (2 * STEP), b"n" * (2 * STEP)
    memory.remember(chain(old, SEED))
    memory.remember(chain(new, SEED))
    assert memory.known_bytes(chain(new, SEED)) == 3 * STEP
    assert memory.known_bytes(chain(old, SEED)) == STEP


@given(st.binary(max_size=4 * STEP), st.binary(max_size=2 * STEP))
def test_a_longer_text_extends_the_chain(text, more):
    assert chain(text + more, SEED).startswith(chain(text, SEED))
