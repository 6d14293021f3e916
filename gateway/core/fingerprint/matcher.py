"""Runs of other tenants' text in one answer, found while it streams.

Each channel of the answer (content, reasoning, the arguments of a tool call, of every choice) is
matched by itself. Windows of one tenant's text become a run where they touch in the answer, so
that all of the run is that tenant's text, whatever order it had there and however often it was
sent. A window that the request's own prompt holds, or a text known to be public, is none. The
prompt is only looked at once there is something to ask of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gateway.core.fingerprint.index import Hit, Index, Kind
from gateway.core.fingerprint.normal import SLICE_CHARS, Normaliser
from gateway.core.fingerprint.shingles import WINDOW, Hashes, KnownText, Scheme
from gateway.core.fingerprint.verdict import Run, Strength, Thresholds, strength

MOST_CHANNELS: Final = 256
_FEW: Final = 32  # bytes; of more, numpy is faster than a loop


class _Channel:
    """One text of the answer as it comes: its last window, and its open runs."""

    __slots__ = ("_normaliser", "_scheme", "_size", "_state", "_window", "open")

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self._normaliser = Normaliser()
        self._window = b""
        self._size = 0
        self._state: int | None = None
        self.open: dict[tuple[int, Kind], _OpenRun] = {}

    @property
    def reached(self) -> int:
        """Where the last window began; negative before there was one."""
        return self._size - WINDOW

    def take(self, text: str) -> tuple[int, Hashes | list[int]]:
        """The windows that ``text`` completes: where the first begins, and their hashes."""
        data = self._normaliser.feed(text)
        before, had = self._window, self._size
        joined = before + data
        self._window = joined[-WINDOW:]
        self._size += len(data)
        if len(before) < WINDOW:
            return 0, self._scheme.hashes(joined)
        first = had - WINDOW + 1
        if len(data) > _FEW:
            self._state = None
            return first, self._scheme.hashes(joined[1:])
        state = self._scheme.state(before) if self._state is None else self._state
        self._state, hashes = self._scheme.roll(state, joined[: len(data)], data)
        return first, hashes


@dataclass(slots=True)
class _OpenRun:
    """A run that the next windows may lengthen."""

    run: Run
    last: int  # where its last window begins in the answer

    def lengthen(self, at: int) -> None:
        self.run = replace(self.run, length=self.run.length + at - self.last)
        self.last = at


class Matcher:
    """Matches one answer. ``feed`` as it comes; ask ``holding`` before releasing what was fed.

    ``tenant`` is the number of who gets the answer. Where ``unsettled`` says so, ``settle`` must
    be given the request's own prompt; until then nothing new counts as foreign, and all is held.
    """

    def __init__(
        self,
        scheme: Scheme,
        index: Index,
        tenant: int,
        public: KnownText | None = None,
        limits: Thresholds | None = None,
    ) -> None:
        self._scheme = scheme
        self._index = index
        self._tenant = tenant
        self._public = public
        self._own: KnownText | None = None
        self._limits = limits or Thresholds()
        self._channels: dict[Hashable, _Channel] = {}
        self._asked: list[tuple[_Channel, list[Hit]]] = []
        self._finished: list[_Channel] = []
        self._closed: list[Run] = []
        self.strength = Strength.NONE
        self.complete = True  # False once an answer had more channels than are watched

    def feed(self, channel: Hashable, text: str) -> None:
        """The next piece of a channel's text, cut anywhere. 16,000 characters take 0.3 ms."""
        watched = self._channels.get(channel)
        if watched is None:
            if len(self._channels) >= MOST_CHANNELS:
                self.complete = False
                return
            watched = self._channels[channel] = _Channel(self._scheme)
        for start in range(0, len(text), SLICE_CHARS):
            self._match(watched, *watched.take(text[start : start + SLICE_CHARS]))

    def finish(self, channel: Hashable) -> None:
        """The channel's text is over: it may be forgotten."""
        finished = self._channels.pop(channel, None)
        if finished is not None:
            self._finished.append(finished)
            self._end_finished()

    def _end_finished(self) -> None:
        if not self.unsettled:
            for channel in self._finished:
                self._end(channel)
            self._finished.clear()

    def _end(self, channel: _Channel) -> None:
        self._closed += [opened.run for opened in channel.open.values()]
        channel.open.clear()

    @property
    def unsettled(self) -> bool:
        """Whether there are windows of which only the own prompt can tell whether they matter."""
        return bool(self._asked)

    def settle(self, own: KnownText) -> None:
        """Tell the request's own prompt; windows that it holds are no finding."""
        self._own = own
        asked, self._asked = self._asked, []
        for channel, hits in asked:
            self._add(channel, hits)
            self._close(channel)
        self._judge()
        self._end_finished()

    @property
    def holding(self) -> bool:
        """Whether what comes next may turn what was found into a strong finding.

        Not once there is one: then it is the caller's to act.
        """
        if self.strength is Strength.STRONG:
            return False
        return self.unsettled or any(channel.open for channel in self._channels.values())

    def end(self) -> None:
        """The answer is over: runs that were open have the length they have."""
        for channel in self._channels.values():
            self._end(channel)

    @property
    def longest(self) -> Run | None:
        """The longest run so far, for the record."""
        return max(self._runs(), key=lambda run: run.length, default=None)

    def _match(self, channel: _Channel, first: int, hashes: Hashes | list[int]) -> None:
        if isinstance(hashes, list):
            hits = self._index.hits_of_few(hashes, first, self._tenant)
        else:
            hits = self._index.hits(hashes, first, self._tenant)
        if hits and self._public is not None:
            hits = _without(hits, self._public)
        if hits and self._own is None:
            self._asked.append((channel, hits))
            return
        self._add(channel, hits)
        if channel.open:
            self._close(channel)
        if hits:
            self._judge()

    def _add(self, channel: _Channel, hits: list[Hit]) -> None:
        if not hits or self._own is None:
            return
        for hit in _without(hits, self._own):
            key = hit.tenant, hit.kind
            opened = channel.open.get(key)
            if opened is not None and hit.at - opened.last <= WINDOW:
                opened.lengthen(hit.at)
                continue
            if opened is not None:
                self._closed.append(opened.run)
            run = Run(hit.tenant, hit.kind, hit.hash)
            channel.open[key] = _OpenRun(run, hit.at)

    def _close(self, channel: _Channel) -> None:
        """Runs end where a whole window's length went by without a part of them."""
        ended = [
            key for key, opened in channel.open.items() if channel.reached - opened.last > WINDOW
        ]
        self._closed += [channel.open.pop(key).run for key in ended]

    def _runs(self) -> list[Run]:
        channels = (*self._channels.values(), *self._finished)
        opened = (channel.open.values() for channel in channels)
        return self._closed + [each.run for runs in opened for each in runs]

    def _judge(self) -> None:
        self.strength = max(self.strength, strength(self._runs(), self._limits))


def _without(hits: list[Hit], known: KnownText) -> list[Hit]:
    """The hits whose window ``known`` does not hold."""
    held = known.holds(np.array([hit.hash for hit in hits], np.uint64))
    return [hit for hit, is_held in zip(hits, held, strict=True) if not is_held]
