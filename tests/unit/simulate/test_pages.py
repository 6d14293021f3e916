import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.simulate.pages import EMPTY, FreeOrder, PageMemory, PoolExhausted


def test_capacity_rounds_down_to_whole_pages():
    assert PageMemory(681_280, 64).page_count == 10_645
    assert PageMemory(130, 64).capacity == 128
    with pytest.raises(ValueError, match="at least one page"):
        PageMemory(63, 64)


def test_a_freed_page_still_holds_its_last_writer():
    memory = PageMemory(8, 4)
    table = memory.allocate(2)
    memory.write(table, 0, "victim", [11, 12, 13, 14, 15])
    memory.release(table)
    assert memory.allocate(2) == table
    page = memory.page(table[0])
    assert (page.owners, page.tokens) == (("victim",) * 4, (11, 12, 13, 14))
    assert memory.slot(table, 4) == ("victim", 15)
    assert memory.slot(table, 5) == ("", EMPTY)


def test_a_write_leaves_the_other_slots_of_the_page_stale():
    memory = PageMemory(4, 4)
    [page] = memory.allocate(1)
    memory.write([page], 0, "victim", [1, 2, 3, 4])
    memory.write([page], 0, "thief", [9])
    assert memory.page(page).owners == ("thief", "victim", "victim", "victim")
    assert memory.page(page).write_epoch == 2


def test_scrubbing_clears_what_is_freed():
    memory = PageMemory(4, 4, scrub_on_free=True)
    table = memory.allocate(1)
    memory.write(table, 0, "victim", [1, 2, 3, 4])
    memory.release(table)
    assert memory.page(table[0]).tokens == (EMPTY,) * 4
    assert set(memory.page(table[0]).owners) == {""}


def test_a_transferred_page_carries_its_stale_slots_along():
    source, target = PageMemory(4, 4), PageMemory(8, 4)
    [there] = source.allocate(1)
    source.write([there], 0, "earlier", [1, 2, 3, 4])
    source.write([there], 0, "now", [7])
    target.copy_from(source, there, 1)
    assert target.page(1).tokens == (7, 2, 3, 4)
    assert target.page(1).owners == ("now", "earlier", "earlier", "earlier")


@pytest.mark.parametrize(
    ("order", "expected"), [(FreeOrder.FIFO, [3, 0, 1, 2]), (FreeOrder.LIFO, [2, 1, 0, 3])]
)
def test_free_order(order: FreeOrder, expected: list[int]):
    memory = PageMemory(4, 1, order=order)
    memory.allocate(4)
    memory.release([3])
    memory.release([0, 1, 2])
    assert memory.allocate(4) == expected


def test_random_order_depends_on_the_seed_alone():
    first, second = (
        PageMemory(64, 1, order=FreeOrder.RANDOM, rng=random.Random(5)).allocate(64)
        for _ in range(2)
    )
    assert first == second
    assert sorted(first) == list(range(64)) != first


def test_freeing_what_nobody_holds_is_refused_and_frees_nothing():
    memory = PageMemory(4, 1)
    held = memory.allocate(2)
    for bad in ([held[0], 3], [held[0], held[0]]):
        with pytest.raises(ValueError, match="nobody holds"):
            memory.release(bad)
    assert memory.free_pages == 2
    memory.release(held)


class Pages(RuleBasedStateMachine):
    """Whatever is allocated and freed in whatever order: no page is lost, shared or invented."""

    @initialize(order=st.sampled_from(FreeOrder))
    def begin(self, order: FreeOrder) -> None:
        self.memory = PageMemory(24, 2, order=order)
        self.held: list[list[int]] = []
        self.serial = 0

    @rule(count=st.integers(0, 14))
    def allocate(self, count: int) -> None:
        free = self.memory.free_pages
        if count > free:
            with pytest.raises(PoolExhausted):
                self.memory.allocate(count)
            assert self.memory.free_pages == free
            return
        table = self.memory.allocate(count)
        self.serial += 1
        self.memory.write(table, 0, f"owner-{self.serial}", [self.serial] * (2 * count))
        self.held.append(table)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            which = data.draw(st.integers(0, len(self.held) - 1))
            self.memory.release(self.held.pop(which))

    @invariant()
    def conserved(self) -> None:
        held = [page for table in self.held for page in table]
        assert len(set(held)) == len(held)
        assert len(held) + self.memory.free_pages == self.memory.page_count

    @invariant()
    def nobody_else_wrote_into_held_pages(self) -> None:
        for table in self.held:
            assert len(set(self.memory.owners(table, 2 * len(table)))) <= 1


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
