"""Keeps asking a backend's workers what they hold, and publishes one immutable snapshot.

There is one ``Discovery`` a backend and process; the request path only reads ``snapshot`` and
``engine``. Of processes that serve together one asks, the others hear it (``one_prober``). What to
ask and how to read it is the adapters' (``gateway.engines``), what follows from it is
``gateway.core.capacity``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from gateway.core import capacity
from gateway.edge.one_prober import OneProber, Word
from gateway.edge.probing import Prober
from gateway.engines import detect
from gateway.engines.base import Answers, Engine, Probe, Router, Unreadable, WorkerRef
from gateway.types import Role, WorkerFacts

log = logging.getLogger(__name__)

# Rounds a router may be missing before what answers in its place is taken for what it seems.
# The workers it told of go stale meanwhile, so nothing is admitted on their word.
ROUTER_ROUNDS = 30
LONGEST_ROUND = 5.0  # seconds beyond two refreshes without a word, after which each asks itself
PACE = 0.01  # seconds between the first questions to two backends
LEAST_PAUSE = 0.25  # seconds between rounds, however many requests suggest another one

Saying = tuple[WorkerFacts, ...] | capacity.Silent


class Discovery:
    """Asks one backend, and every worker behind it, each ``refresh`` seconds.

    ``engine_name`` is an adapter's name or ``auto``; ``extra_workers`` are URLs the operator
    names because no router tells them. ``clock`` gives monotonic seconds. ``together``: the
    processes that need ask only once.
    """

    def __init__(
        self,
        name: str,
        url: str,
        prober: Prober,
        *,
        engine_name: str = "auto",
        extra_workers: Sequence[str] = (),
        refresh: float = 10.0,
        clock: Callable[[], float],
        together: OneProber | None = None,
    ) -> None:
        self.key = json.dumps([name, url, engine_name, *extra_workers])
        self._together = together
        self._asked_at: float | None = None  # by this process or another
        self._name = name
        self._url = url
        self._prober = prober
        self._named = None if engine_name == "auto" else detect.by_name(engine_name)
        self._extra = tuple(WorkerRef(worker) for worker in extra_workers)
        self._refresh = refresh
        self._clock = clock
        self._wake = asyncio.Event()
        self._round_over = asyncio.Event()
        self._known: dict[str, Engine] = {}
        self._troubles: dict[str, str] = {}
        self.snapshot = capacity.Snapshot()
        self.engine: Engine | None = self._named
        self.router: Router | None = None
        self._without_router = 0  # rounds since the router last told

    async def run(self, place: int = 0, of: int = 1) -> None:
        """Ask, or hear, for ever. A round never fails: what it missed is in the snapshot.

        It is one ``of`` so many backends. Their first rounds begin one shortly after the other, and
        the later ones are spread over the refresh: hundreds at once would hold up requests.
        """
        if self._together is not None:
            self._together.join(self)
        wait = self._refresh * (place + 1) / of
        try:
            await asyncio.sleep(place * PACE)
            while True:
                if self.asks:
                    await self.round()
                pause = min(LEAST_PAUSE, wait)
                await asyncio.sleep(pause)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait - pause):
                        await self._wake.wait()
                self._wake.clear()
                wait = self._refresh
        finally:
            if self._together is not None:
                self._together.leave(self)

    @property
    def asks(self) -> bool:
        """Whether this process asks the engine: it does for all, or has heard nothing of late."""
        if self._together is None or self._together.leads or self._asked_at is None:
            return True
        return self._clock() - self._asked_at > 2 * self._refresh + LONGEST_ROUND

    def ask_soon(self) -> None:
        """Something suggests that the engine changed: do not wait for the next refresh."""
        if self._together is None or self._together.leads:
            self._wake.set()
        else:
            self._together.ask_soon(self)

    def word(self) -> Word | None:
        """What the last round gave; None before the first."""
        if self._asked_at is None:
            return None
        engine, router = self.engine, self.router
        return Word(
            self.snapshot,
            engine.name if engine is not None else None,
            router.name if router is not None else None,
            self._asked_at,
        )

    def take(self, word: Word) -> None:
        """Another process has asked. What this one has found since stays."""
        if self._asked_at is not None and word.at < self._asked_at:
            return
        self._asked_at = word.at
        if word.engine is not None:
            self.engine = detect.by_name(word.engine)
        self.router = detect.router_by_name(word.router)
        self.snapshot = capacity.heard(self.snapshot, word.snapshot)
        self._end_round()

    async def first_round(self) -> None:
        """Return once something is known of the engine, if only that it does not answer."""
        if self._asked_at is None:
            await self.next_round()

    async def next_round(self) -> None:
        """Return once the round under way, or the next one, is over."""
        await self._round_over.wait()

    def learned_limit(self, stated: int) -> None:
        """The engine refused a prompt naming this limit: hold to it, and look again."""
        before = capacity.contradictions(self.snapshot)
        self.snapshot = capacity.learn(self.snapshot, stated)
        for line in capacity.contradictions(self.snapshot):
            if line not in before:
                log.warning("backend %s: %s", self._name, line)
        if self._together is not None:
            self._together.learned(self, stated)
        self.ask_soon()

    async def round(self) -> None:
        """One round over the front and all workers, folded into ``snapshot``."""
        front = await self._prober.ask(self._url, self._questions(self._url))
        router = detect.detect_router(front)
        words: dict[str, Saying] = {}
        complete = True
        if router is not None:
            self.router, self._without_router = router, 0
            complete = await self._behind(router, front, words)
        elif self.router is not None and self._without_router < ROUTER_ROUNDS:
            # The router that was here does not tell now. What answers in its place may be one
            # worker of many, proxied: its limit must not pass for everybody's.
            self._without_router += 1
            self._report(self._url, _reasons(front) or "the router does not list its workers now")
            complete = False
        else:
            self.router = None
            words[self._url] = await self._read(self._url, front)
        words.update(await self._ask_each(self._extra))
        for worker, word in words.items():
            self._report(worker, word.reason if isinstance(word, capacity.Silent) else None)
        self._asked_at = self._clock()
        self.snapshot = capacity.observe(
            self.snapshot, capacity.Round(words, complete), self._asked_at
        )
        self._end_round()
        if self._together is not None:
            self._together.tell(self)

    def _end_round(self) -> None:
        self._round_over.set()
        self._round_over = asyncio.Event()

    async def _behind(self, router: Router, front: Answers, words: dict[str, Saying]) -> bool:
        """The words of a router's workers; whether its list of them can be trusted."""
        told = router.workers(front)
        if isinstance(told, Unreadable):
            self._report(self._url, told.reason)
            if not self._extra and not self.snapshot.workers:
                words[self._url] = capacity.Silent(told.reason)
            return False
        self._report(self._url, None)
        words.update(await self._ask_each(told))
        return True

    async def _ask_each(self, refs: Sequence[WorkerRef]) -> dict[str, Saying]:
        words = await asyncio.gather(*(self._ask(ref) for ref in refs))
        return {ref.url: word for ref, word in zip(refs, words, strict=True)}

    async def _ask(self, ref: WorkerRef) -> Saying:
        word = await self._read(ref.url, await self._prober.ask(ref.url, self._questions(ref.url)))
        if isinstance(word, capacity.Silent) or ref.role == Role.REGULAR:
            return word
        return tuple(
            replace(fact, role=Role(ref.role)) if fact.role is Role.REGULAR else fact
            for fact in word
        )

    def _questions(self, url: str) -> tuple[Probe, ...]:
        """All there are until the engine is known, then its own and the routers'."""
        engine = self._named or self._known.get(url)
        if engine is None:
            return detect.detection_probes()
        return (*detect.router_probes(), *engine.probes)

    async def _read(self, url: str, answers: Answers) -> Saying:
        """What a worker's answers say. A known one that sounds different is asked from anew."""
        engine = self._named or self._known.get(url)
        if engine is None:
            engine = next((one for one in detect.ENGINES if one.recognises(answers)), None)
        elif self._named is None and not engine.recognises(answers) and not _silent(answers):
            del self._known[url]
            return await self._read(url, await self._prober.ask(url, detect.detection_probes()))
        if engine is None:
            return capacity.Silent(_reasons(answers) or "no engine this version knows answers here")
        self._known[url] = self.engine = engine
        word = engine.read(url, answers)
        return capacity.Silent(word.reason) if isinstance(word, Unreadable) else word

    def _report(self, worker: str, trouble: str | None) -> None:
        """One log line a change of state, not one a round."""
        if trouble == self._troubles.get(worker):
            return
        if trouble is None:
            del self._troubles[worker]
            log.info("backend %s: worker %s answers again", self._name, worker)
        else:
            self._troubles[worker] = trouble
            log.warning("backend %s: worker %s: %s", self._name, worker, trouble)


def _silent(answers: Answers) -> bool:
    return all(answer.status == 0 for answer in answers.values())


def _reasons(answers: Answers) -> str:
    """Why nothing answered; empty where something did."""
    if not _silent(answers):
        return ""
    reasons = {answer.body.decode("utf-8", "replace") for answer in answers.values()}
    return ", ".join(sorted(reasons))
