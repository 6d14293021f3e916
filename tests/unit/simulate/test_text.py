import random
import statistics
from collections.abc import Sequence
from itertools import pairwise

import pytest

from gateway.simulate.pages import PageMemory
from gateway.simulate.text import Attended, Filler, Habits, Writer, geometric

SPECIAL = frozenset({0})


def encode(text: str) -> Sequence[int]:
    return tuple(1000 + byte for byte in text.encode())


def memory_of(owner: str, tokens: list[int]) -> tuple[PageMemory, list[int]]:
    memory = PageMemory(1024, 16)
    table = memory.allocate(memory.pages_for(len(tokens)))
    memory.write(table, 0, owner, tokens)
    return memory, table


def write(habits: Habits, attended: Attended, count: int, owner: str = "me", seed: int = 1):
    writer = Writer(owner, habits, Filler(encode), SPECIAL, random.Random(seed))
    return [writer.next(attended) for _ in range(count)]


def test_geometric_has_its_mean():
    rng = random.Random(3)
    drawn = [geometric(40.0, rng) for _ in range(20_000)]
    assert statistics.mean(drawn) == pytest.approx(40.0, rel=0.03)
    assert min(drawn) == 1
    assert geometric(1.0, rng) == 1


def test_foreign_memory_is_copied_in_runs_and_named():
    memory, table = memory_of("victim", list(range(1, 513)))
    written = write(Habits(q_copy=0.5), Attended(memory, table, 512), 4000)
    copied = [token for token, owner in written if owner == "victim"]
    assert {owner for _, owner in written} == {None, "victim"}
    assert 0.35 < len(copied) / len(written) < 0.65
    follows = sum(after == before + 1 for before, after in pairwise(copied))
    assert follows > 0.9 * len(copied)


def test_what_the_table_does_not_reach_cannot_be_written():
    memory, table = memory_of("victim", list(range(1, 513)))
    written = write(Habits(q_copy=1.0), Attended(memory, table, 100), 2000)
    copied = {token for token, owner in written if owner == "victim"}
    assert copied
    assert max(copied) <= 100


def test_q_copy_zero_copies_nothing_foreign():
    memory, table = memory_of("victim", list(range(1, 513)))
    written = write(Habits(q_copy=0.0), Attended(memory, table, 512), 1000)
    assert all(owner is None and token >= 1000 for token, owner in written)


def test_ones_own_prompt_is_echoed_seldom():
    memory, table = memory_of("me", list(range(1, 513)))
    written = write(Habits(echo=0.06), Attended(memory, table, 512), 20_000)
    own = sum(owner == "me" for _, owner in written)
    assert 0.01 < own / len(written) < 0.15


def test_special_tokens_and_empty_slots_end_a_run():
    memory, table = memory_of("victim", [0] * 16)
    attended = Attended(memory, [*table, *memory.allocate(1)], 32)
    assert all(owner is None for _, owner in write(Habits(q_copy=1.0), attended, 500))


def test_a_run_stops_where_the_owner_changes():
    memory, table = memory_of("victim", list(range(1, 33)))
    memory.write(table, 16, "other", list(range(501, 517)))
    written = write(Habits(q_copy=1.0, mean_run=1000.0), Attended(memory, table, 32), 3000)
    for token, owner in written:
        assert owner is None or (owner == "other") == (token > 500)


@pytest.mark.parametrize("bad", [{"q_copy": 1.1}, {"echo": -0.1}, {"mean_run": 0.5}])
def test_habits_are_checked(bad: dict[str, float]):
    with pytest.raises(ValueError, match="probabilities"):
        Habits(**bad)
