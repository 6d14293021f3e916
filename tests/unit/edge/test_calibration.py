"""Counters with a learnt offset: what they say settles the question they were asked."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.core.admission import Limit, settles
from gateway.core.calibration import Calibration, Policy
from gateway.core.samples import Sample
from gateway.edge.calibration import CalibratedCounters, Calibrator, Counts
from gateway.types import Bounded, ChatPrompt, Counted, TextPrompt

CHAT = ChatPrompt("openai_chat", {"messages": []})
TEXT = TextPrompt(("x",))
OURS, BOUND = 80, 95


class Counter:
    """Counts everything as 80, and knows a bound of 95."""

    def measure(self, prompt, limit, means=None):
        return Bounded(BOUND, BOUND) if limit is None or limit >= BOUND else Counted((OURS,))

    def count(self, prompt, stop_at=None, means=None):
        return Counted((OURS,))


def counters(offset, ready=True):
    plain = Counter()
    known = SimpleNamespace(
        loaded=lambda engine: plain if ready else None,
        load=lambda engine: plain,
        description={"tokenizer": "t"},
    )
    return plain, CalibratedCounters(known, SimpleNamespace(found=Calibration(offset=offset)))


def test_without_an_offset_the_counter_is_the_same():
    plain, corrected = counters(0)
    assert corrected.loaded("vllm") is plain
    assert corrected.load("vllm") is plain
    assert corrected.description == {"tokenizer": "t"}
    assert counters(7, ready=False)[1].loaded("vllm") is None


@pytest.mark.parametrize("offset", [7, -7])
@pytest.mark.parametrize("limit", [None, 0, 1, 85, 95, 101, 102, 200])
def test_a_chats_length_is_shifted_and_decides_against_the_whole_limit(offset, limit):
    counter = counters(offset)[1].load("vllm")
    length = counter.measure(CHAT, limit)
    assert length in (Counted((OURS + offset,)), Bounded(BOUND + offset, BOUND + offset))
    assert settles(length, None if limit is None else Limit(limit, "engine"))
    assert counter.count(CHAT) == Counted((OURS + offset,))


def test_a_text_is_not_shifted():
    counter = counters(7)[1].load("vllm")
    assert counter.count(TEXT) == Counted((OURS,))
    assert counter.measure(TEXT, 95) == Bounded(BOUND, BOUND)


SAMPLES = [Sample("text/one", TEXT), Sample("text/two", TEXT)]


async def test_backends_that_count_alike_count_the_samples_once():
    counted = []

    class Noting(Counter):
        def count(self, prompt, stop_at=None, means=None):
            counted.append(prompt)
            return super().count(prompt, stop_at, means)

    counts = Counts(SimpleNamespace(load=lambda engine: Noting()))
    for _ in range(3):
        for sample in SAMPLES:
            assert await counts.of(sample, "vllm") == Counted((OURS,))
    assert len(counted) == 2
    await counts.of(SAMPLES[0], "sglang")  # which may render it otherwise
    assert len(counted) == 3


async def test_no_more_backends_are_compared_at_once_than_have_a_turn(monkeypatch):
    under_way, most = set(), []

    async def calibrate(self):
        under_way.add(self._name)
        most.append(len(under_way))
        await asyncio.sleep(0)
        under_way.discard(self._name)
        self.compared = True

    monkeypatch.setattr(Calibrator, "calibrate", calibrate)
    monkeypatch.setattr(Calibrator, "_due", property(lambda self: not hasattr(self, "compared")))
    turns = asyncio.Semaphore(2)
    discovery = SimpleNamespace(next_round=asyncio.Event().wait)
    made = [
        Calibrator(str(n), "", None, discovery, None, Policy(60.0), "m", lambda: 0.0, turns=turns)
        for n in range(7)
    ]
    running = [asyncio.ensure_future(one.run()) for one in made]
    while not all(hasattr(one, "compared") for one in made):
        await asyncio.sleep(0)
    for task in running:
        task.cancel()
    assert max(most) == 2
