"""One timer for many waits: it goes off for the wait that lasts too long, and for no other."""

from __future__ import annotations

import asyncio

import pytest

from gateway.edge.deadline import Deadline


class Loop:
    """A loop's clock and timers, moved by hand."""

    def __init__(self):
        self.now = 100.0
        self.timers = []

    def time(self):
        return self.now

    def call_at(self, when, call):
        timer = Timer(when, call)
        self.timers.append(timer)
        return timer

    @property
    def waiting(self):
        return [timer for timer in self.timers if not timer.over]

    def move(self, seconds):
        self.now += seconds
        for timer in [timer for timer in self.waiting if timer.when <= self.now]:
            timer.over = True
            timer.call()


class Timer:
    def __init__(self, when, call):
        self.when, self.call, self.over = when, call, False

    def cancel(self):
        self.over = True


@pytest.fixture
def loop(monkeypatch):
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_a_wait_that_lasts_too_long_is_told_once(loop):
    missed = []
    deadline = Deadline(lambda: missed.append(loop.now))
    deadline.begin(10)
    loop.move(9.9)
    assert not missed
    loop.move(0.2)
    loop.move(50)
    assert missed == [pytest.approx(110.1)]


def test_many_waits_take_one_timer_at_a_time(loop):
    missed = []
    deadline = Deadline(lambda: missed.append(loop.now))
    for _ in range(1000):
        deadline.begin(10)
        loop.move(0.02)
        deadline.end()
    assert not missed
    assert len(loop.timers) <= 3  # one or two went off in these 20 s, and looked
    assert len(loop.waiting) == 1


def test_each_wait_has_its_whole_time(loop):
    missed = []
    deadline = Deadline(lambda: missed.append(loop.now))
    deadline.begin(10)
    loop.move(6)
    deadline.end()
    deadline.begin(10)
    loop.move(9)  # the first wait's time is long over
    assert not missed
    loop.move(1)
    assert missed == [116.0]


def test_nothing_is_missed_between_waits(loop):
    deadline = Deadline(pytest.fail)
    deadline.begin(10)
    loop.move(1)
    deadline.end()
    loop.move(100)
    assert not loop.waiting
    deadline.begin(10)
    assert len(loop.waiting) == 1


def test_a_shorter_wait_moves_the_timer_forward(loop):
    missed = []
    deadline = Deadline(lambda: missed.append(loop.now))
    deadline.begin_until(1900.0)
    deadline.end()
    deadline.begin(10)
    loop.move(10)
    assert missed == [110.0]


def test_stopped_it_leaves_no_timer(loop):
    deadline = Deadline(pytest.fail)
    deadline.begin(10)
    deadline.stop()
    loop.move(100)
    assert not loop.waiting
