"""Asking both legs what they counted."""

from __future__ import annotations

import pytest

from gateway.core.capacity import Seen, Snapshot
from gateway.edge.books import read_books
from gateway.engines.base import Answer
from gateway.types import Books, Role, WorkerFacts


class Pages:
    """Workers' metrics pages by address, in the order they were asked for."""

    def __init__(self, **pages):
        self.pages = pages
        self.asked = []

    async def ask(self, url, probes):
        self.asked.append(url)
        page = self.pages.get(url)
        answer = Answer(0, b"") if page is None else Answer(200, page.encode())
        return dict.fromkeys(probes, answer)


def page(leg, tokens, requests):
    return (
        f'sglang:prompt_tokens_total{{engine_type="{leg}"}} {tokens}\n'
        f'sglang:num_requests_total{{engine_type="{leg}"}} {requests}\n'
    )


def snapshot(**roles):
    return Snapshot(
        {
            url: Seen(tuple(WorkerFacts(f"{url}{n}", "sglang", role) for n, role in enumerate(its)))
            for url, its in roles.items()
        }
    )


BOTH = snapshot(p=[Role.PREFILL], q=[Role.PREFILL, Role.PREFILL], d=[Role.DECODE])


async def test_legs_are_summed_and_decode_is_asked_first():
    pages = Pages(p=page("prefill", 10, 1), q=page("prefill", 20, 2), d=page("decode", 30, 3))
    assert await read_books(BOTH, pages) == {Role.DECODE: Books(3, 30), Role.PREFILL: Books(3, 30)}
    assert pages.asked == ["d", "p", "q"]


async def test_one_page_can_be_both_legs():
    pages = Pages(front=page("prefill", 1, 1) + page("decode", 700, 1))
    books = await read_books(snapshot(front=[Role.PREFILL, Role.DECODE]), pages)
    assert books == {Role.DECODE: Books(1, 700), Role.PREFILL: Books(1, 1)}


@pytest.mark.parametrize(
    ("workers", "pages"),
    [
        (BOTH, {"p": page("prefill", 1, 1), "d": page("decode", 1, 1)}),  # q is silent
        (snapshot(p=[Role.PREFILL]), {"p": page("prefill", 1, 1)}),
        (snapshot(p=[Role.PREFILL], d=[Role.DECODE], r=[Role.REGULAR]), {}),
        (snapshot(p=[Role.PREFILL], d=[Role.DECODE], new=[]), {}),
        (Snapshot(), {}),
    ],
    ids=["one_silent", "one_leg", "a_regular_one", "one_without_facts", "none"],
)
async def test_half_of_it_is_nothing(workers, pages):
    assert await read_books(workers, Pages(**pages)) is None
