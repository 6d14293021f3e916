"""The longest prefix an earlier prompt shares, without keeping text."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.prefixes import STEP, PrefixMemory, chain


def test_known_bytes_is_an_upper_bound_within_one_step():
    memory = PrefixMemory(100)
    text = bytes(range(256)) * 40
    memory.remember(chain(text, b"k"))
    assert memory.known_bytes(chain(text, b"k")) == len(text) + STEP
    for shared in (0, 1, STEP - 1, STEP, STEP + 1, 5 * STEP + 17):
        other = text[:shared] + bytes([text[shared] ^ 1]) * (2 * STEP)
        bound = memory.known_bytes(chain(other, b"k"))
        assert shared <= bound <= shared + STEP


def test_tenants_with_other_keys_share_nothing():
    memory = PrefixMemory(100)
    text = b"x" * (3 * STEP)
    memory.remember(chain(text, b"tenant-a"))
    assert memory.known_bytes(chain(text, b"tenant-b")) == STEP


def test_memory_is_bounded_and_the_oldest_goes_first():
    memory = PrefixMemory(2)
    old, new = b"o" * (2 * STEP), b"n" * (2 * STEP)
    memory.remember(chain(old, b"k"))
    memory.remember(chain(new, b"k"))
    assert memory.known_bytes(chain(new, b"k")) == 3 * STEP
    assert memory.known_bytes(chain(old, b"k")) == STEP


@given(st.binary(max_size=4 * STEP), st.binary(max_size=2 * STEP))
def test_a_longer_text_extends_the_chain(text, more):
    assert chain(text + more, b"k")[: len(chain(text, b"k"))] == chain(text, b"k")
