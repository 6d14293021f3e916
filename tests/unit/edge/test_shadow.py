"""Work in the shadow of prefill: begun once, when it is due or when it is wanted."""

from __future__ import annotations

import asyncio

from gateway.edge.shadow import Later, Shadow


def later():
    begun = []

    def spawn():
        begun.append(1)
        return asyncio.ensure_future(asyncio.sleep(0, "done"))

    return Later(spawn), begun


async def test_nothing_begins_by_itself_and_nothing_twice():
    work, begun = later()
    assert not begun
    assert not work.done
    shadow = Shadow(count=work)
    shadow.begin()
    shadow.begin()
    assert await work.result() == "done"
    assert work.done
    assert len(begun) == 1


async def test_who_needs_it_before_the_request_was_sent_begins_it():
    work, begun = later()
    assert await work.result() == "done"
    assert len(begun) == 1


def test_an_empty_shadow_has_nothing_to_begin():
    Shadow().begin()
