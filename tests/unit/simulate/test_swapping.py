"""Swapped answers, and the truth about how many there were."""

import asyncio

from gateway.simulate.api.swapping import Swapper


async def test_pairs_change_places_and_are_counted():
    swapper = Swapper()
    assert await asyncio.gather(*(swapper.exchange("k", own) for own in "abcd")) == list("badc")
    assert swapper.swapped == 4


async def test_an_answer_alone_keeps_its_place_and_is_not_counted(monkeypatch):
    monkeypatch.setattr("gateway.simulate.api.swapping.PATIENCE", 0.01)
    swapper = Swapper()
    assert await asyncio.gather(swapper.exchange("k", "a"), swapper.exchange("other", "b")) == [
        "a",
        "b",
    ]
    assert swapper.swapped == 0
