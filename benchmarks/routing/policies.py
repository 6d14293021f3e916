"""Policies of choice compared on simulated engines: ``python -m benchmarks.routing.policies``.

Engines prefill one prompt after the other at ``PREFILL`` tokens a second, slowed by each answer
they decode meanwhile; prompts are heavy-tailed, arrivals Poisson. An engine keeps the tokens of
conversations it served last, up to ``CACHE``, and prefills only what is new. The gateways' choices
are made by ``gateway.core.choice`` itself, each gateway knowing its own requests alone. All from
fixed seeds: figures are those of docs/routing.md on any machine.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from gateway.core.choice import Load, affine_first, least_first, seed, work

PREFILL = 8000.0  # tokens a second of an engine that decodes nothing
SLOWDOWN = 0.01  # of prefill, by each answer being decoded
DECODE = 40.0  # tokens a second of one answer
CACHE = 400_000  # tokens of prefixes an engine keeps
LONGEST = 120_000
ENGINES = 4
STREAM_TOKENS, FACTOR = 64, 1.25  # the defaults of ``routing``


@dataclass
class Request:
    at: float
    tokens: int
    output: int
    session: int
    gateway: int
    prefix: int = 0  # of the tokens, those of the conversation's earlier turns
    ttft: float = 0.0
    left: float = 0.0


@dataclass
class Engine:
    queue: deque[Request] = field(default_factory=deque)
    streams: int = 0
    since: float = 0.0
    version: int = 0
    cached: OrderedDict[int, int] = field(default_factory=OrderedDict)
    hits: int = 0
    prompts: int = 0

    @property
    def rate(self) -> float:
        return PREFILL / (1 + SLOWDOWN * self.streams)

    def advance(self, now: float) -> None:
        if self.queue:
            self.queue[0].left -= (now - self.since) * self.rate
        self.since = now

    def begin(self) -> None:
        """The first of the queue is looked up as its prefill begins."""
        request = self.queue[0]
        known = min(self.cached.get(request.session, 0), request.prefix)
        self.hits += known
        self.prompts += request.tokens
        request.left = request.tokens - known

    def keep(self, request: Request) -> None:
        self.cached[request.session] = request.tokens + request.output
        self.cached.move_to_end(request.session)
        while sum(self.cached.values()) > CACHE and len(self.cached) > 1:
            self.cached.popitem(last=False)


class View:
    """One gateway's: what it sent and has not seen the end of."""

    def __init__(self) -> None:
        self.loads = [Load()] * ENGINES
        self.turns = count()

    def move(self, at: int, prefilling: int, decoding: int) -> None:
        load = self.loads[at]
        self.loads[at] = replace(
            load, prefilling=load.prefilling + prefilling, decoding=load.decoding + decoding
        )


SEEDS = [seed(f"engine-{number}") for number in range(ENGINES)]
Policy = Callable[[View, Request, list[int]], int]


def policies(rng: random.Random) -> dict[str, Policy]:
    def least_requests(view: View, _: Request, waiting: list[int]) -> int:
        return next(least_first(waiting, next(view.turns)))

    def two_choices(_view: View, _request: Request, waiting: list[int]) -> int:
        one, other = rng.sample(range(ENGINES), 2)
        return one if waiting[one] <= waiting[other] else other

    def least_tokens(stream_tokens: int) -> Policy:
        return lambda view, _, __: next(
            least_first(work(view.loads, stream_tokens), next(view.turns))
        )

    def affinity(factor: float) -> Policy:
        return lambda view, request, _: affine_first(
            seed(str(request.session)),
            SEEDS,
            work(view.loads, STREAM_TOKENS),
            request.tokens,
            factor,
        )[0]

    return {
        "random": lambda *_: rng.randrange(ENGINES),
        "two choices, requests": two_choices,
        "least requests": least_requests,
        "least tokens, streams 0": least_tokens(0),
        "least tokens, streams 64": least_tokens(STREAM_TOKENS),
        "least tokens, streams 256": least_tokens(256),
        "least tokens, streams 2048": least_tokens(2048),
        "affinity, factor 1.25": affinity(FACTOR),
        "affinity, unbounded": affinity(1e9),
    }


def prompts(number: int, load: float, gateways: int, turns: int, hot: float) -> Iterator[Request]:
    """Conversations of ``turns`` requests on average; a share ``hot`` of all is of one session."""
    rng = random.Random(11)

    def first() -> int:
        return min(LONGEST, int(rng.paretovariate(1.2) * 300))

    mean = statistics.fmean(first() for _ in range(200_000)) * (turns + 1) / 2
    rate = load * ENGINES * PREFILL / mean
    now, open_ones, sessions = 0.0, [], count(1)
    for _ in range(number):
        now += rng.expovariate(rate)
        gateway, output = rng.randrange(gateways), 1 + int(rng.expovariate(1 / 200))
        if rng.random() < hot:
            yield Request(now, 2000, output, 0, gateway, 1800)
            continue
        if open_ones and rng.random() < 1 - 1 / turns:
            session, tokens, added = open_ones.pop(rng.randrange(len(open_ones)))
        else:
            added = first()
            session, tokens = next(sessions), 0
        total = min(LONGEST, tokens + added)
        yield Request(now, total, output, session, gateway, tokens)
        if turns > 1 and total < LONGEST:
            open_ones.append((session, total + output, first()))
            if len(open_ones) > 200:
                open_ones.pop(0)


def run(policy: Policy, requests: list[Request], gateways: int) -> tuple[list[float], float]:
    """Seconds to the first token of each request, and the share of tokens that were cached."""
    engines = [Engine() for _ in range(ENGINES)]
    views = [View() for _ in range(gateways)]
    waiting = [[0] * ENGINES for _ in range(gateways)]
    events: list[tuple[float, int, str, int, object]] = []
    order = count()

    def expect(at: int, now: float) -> None:
        engine = engines[at]
        engine.version += 1
        if engine.queue:
            end = now + max(0.0, engine.queue[0].left) / engine.rate
            heapq.heappush(events, (end, next(order), "prefilled", at, engine.version))

    for request in requests:
        heapq.heappush(events, (request.at, next(order), "arrives", 0, request))
    while events:
        now, _, what, at, told = heapq.heappop(events)
        if what == "arrives":
            request = told
            at = policy(views[request.gateway], request, waiting[request.gateway])
            views[request.gateway].move(at, request.tokens, 0)
            waiting[request.gateway][at] += 1
            engines[at].advance(now)
            engines[at].queue.append(request)
            if len(engines[at].queue) == 1:
                engines[at].begin()
        elif what == "prefilled":
            engine = engines[at]
            if told != engine.version:
                continue
            engine.advance(now)
            request = engine.queue.popleft()
            request.ttft = now - request.at
            views[request.gateway].move(at, -request.tokens, 1)
            engine.streams += 1
            engine.keep(request)
            heapq.heappush(
                events, (now + request.output / DECODE, next(order), "decoded", at, request)
            )
            if engine.queue:
                engine.begin()
        else:
            engines[at].advance(now)
            engines[at].streams -= 1
            views[told.gateway].move(at, 0, -1)
            waiting[told.gateway][at] -= 1
        expect(at, now)
    hits = sum(engine.hits for engine in engines) / sum(engine.prompts for engine in engines)
    return [request.ttft for request in requests], hits


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--requests", type=int, default=20_000)
    number = arguments.parse_args().requests
    scenes = {
        "single prompts, load 0.4": (0.4, 1, 1, 0.0),
        "single prompts, load 0.6": (0.6, 1, 1, 0.0),
        "single prompts, load 0.6, 4 gateways": (0.6, 4, 1, 0.0),
        "conversations, load 0.6": (0.6, 1, 4, 0.0),
        "conversations, load 0.6, a quarter of one session": (0.6, 1, 4, 0.25),
    }
    for scene, (load, gateways, turns, hot) in scenes.items():
        print(f"\n{scene}\n  {'policy':28} {'p50 s':>8} {'p99 s':>8} {'cached':>7}")
        for name, policy in policies(random.Random(3)).items():
            requests = list(prompts(number, load, gateways, turns, hot))
            times, hits = run(policy, requests, gateways)
            cuts = statistics.quantiles(times, n=100)
            print(f"  {name:28} {cuts[49]:8.3f} {cuts[98]:8.2f} {hits:7.0%}")


if __name__ == "__main__":
    main()
