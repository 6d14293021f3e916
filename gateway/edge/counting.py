"""Counting off the event loop: short prompts in place, long ones on a few threads.

Prompts with a run that cannot be cut, one library call of seconds, wait for each other in a lane
of their own, so that nobody else waits for them.

A prompt's length is asked for in two strengths. ``measure`` answers just enough for admission:
a proved bound where that settles it, else a count that stops once the limit is passed. ``exact``
is the count the check of usage needs, run in the shadow of the engine's prefill.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Protocol, TypeVar

from gateway.edge.metrics import Metrics
from gateway.edge.probing import Prober
from gateway.engines.asking import shows_media
from gateway.engines.base import Engine, OracleCall
from gateway.tokens.encoder import FREELY, Means
from gateway.tokens.recall import CountCache, NeedsPatience
from gateway.types import (
    Bounded,
    ChatPrompt,
    Counted,
    OpaquePrompt,
    ParsedRequest,
    Prompt,
    PromptLength,
    TextPrompt,
    TokenIdPrompt,
    Unverifiable,
)

T = TypeVar("T")
NO_TOKENIZER = "no_tokenizer"

# Reasons for which our own rendering gives up although the engine's tokeniser can tell.
ENGINE_CAN_TELL = frozenset(
    {
        "engine_rendering",
        "harmony",
        "message_tools",
        "no_template",
        "number_format",
        "run_too_long",
        "schema_types",
        "server_clock",
        "template_kwargs",
        "template_refused",
        "thinking",
        "thinking_history",
        "tool_namespace",
    }
)

# What a text can grow to before it is tokenised, in bytes: NFKC turns the 3 bytes of U+FDFA into
# 33, the worst case in Unicode 16; no tokenizer makes more tokens than bytes of normalised text.
NORMALISER_GROWTH = 11
SPECIAL_TOKENS = 16

# What is rendered and bounded on the event loop: about 1 ms at most (a message is two values or
# more and takes 10 microseconds, 500 kB take 150).
GLANCE_BYTES = 2**19
GLANCE_VALUES = 200

# Characters that are counted there though they are not remembered: a fifth of a millisecond.
FRESH_IN_PLACE = 2048

SENDING = 0.005  # seconds that a request is given to be sent in before others' work begins

# Prompts that may be in the slow lane at once, the one being counted included.
SLOW_LANE = 8
SLOW_LANE_OF_ONE = 4  # of one tenant's


class LocalCounter(Protocol):
    """Synchronous counting with the model's own tokenizer (``gateway.tokens.counter``)."""

    def glance(self, prompt: Prompt) -> Bounded | None:
        """The bound of its bytes, where there is one."""

    def measure(self, prompt: Prompt, limit: int | None, means: Means = FREELY) -> PromptLength:
        """Enough to decide against ``limit``: a proved bound where that settles it.

        Raises ``NeedsPatience``, as ``count`` does, where ``means`` has too little.
        """

    def count(
        self, prompt: Prompt, stop_at: int | None = None, means: Means = FREELY
    ) -> PromptLength:
        """The exact count; ``AtLeast`` once an item passes ``stop_at``."""


class LocalCounters(Protocol):
    """One tokenizer as each engine uses it (``gateway.tokens.counters``)."""

    @property
    def description(self) -> Mapping[str, object]:
        """What counts, for operators."""

    def loaded(self, engine: str) -> LocalCounter | None:
        """The counter for an engine, if it is ready."""

    def load(self, engine: str) -> LocalCounter:
        """The counter for an engine, made ready where it was not: seconds of work."""


class Measurer(Protocol):
    """Where a backend's prompt lengths come from: a local tokenizer, or the engine."""

    async def measure(self, request: ParsedRequest, limit: int | None, tenant: str) -> PromptLength:
        """Enough to decide against ``limit``. Raises ``Rejection`` for ids no vocabulary has.

        What ``tenant`` sent before may be remembered, for this tenant alone.
        """

    async def exact(self, request: ParsedRequest, tenant: str) -> PromptLength:
        """The exact count, or why there is none."""


class Busy(Exception):
    """The slow lane has no room for this tenant."""


class Threads:
    """Runs CPU work in place when it is small, else on an executor. Times it either way."""

    def __init__(
        self, executor: Executor, slow: Executor, inline_bytes: int, metrics: Metrics
    ) -> None:
        self._executor = executor
        self._slow = slow
        self._in_slow_lane: list[tuple[str, Future[PromptLength]]] = []
        self.inline_bytes = inline_bytes
        self._in_place = metrics.count_seconds.labels("in_place")
        self._on_thread = metrics.count_seconds.labels("thread")
        self._in_lane = metrics.count_seconds.labels("slow_lane")

    def in_place(self, work: Callable[[], T]) -> T:
        """Run now, on the loop."""
        with self._in_place.time():
            return work()

    def after_sending(self, request: ParsedRequest, work: Callable[[], object]) -> asyncio.Handle:
        """Begin ``work`` once ``request`` should be with the engine; cancel it until then.

        A small one is out when the loop comes round, and a timer costs more than such work.
        """
        loop = asyncio.get_running_loop()
        if len(request.raw) <= self.inline_bytes:
            return loop.call_soon(work)
        return loop.call_later(SENDING, work)

    async def on_thread(self, work: Callable[[], T]) -> T:
        """Run on the executor; the time includes the wait for a free thread."""
        with self._on_thread.time():
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def in_slow_lane(self, tenant: str, work: Callable[[], PromptLength]) -> PromptLength:
        """Run on the executor for work of seconds.

        Raises ``Busy`` where too much waits there, or too much of this tenant's.

        Cancelled, it is taken from the queue; work that has begun runs to its end.
        """
        self._in_slow_lane = [entry for entry in self._in_slow_lane if not entry[1].done()]
        of_tenant = sum(owner == tenant for owner, _ in self._in_slow_lane)
        if len(self._in_slow_lane) >= SLOW_LANE or of_tenant >= SLOW_LANE_OF_ONE:
            raise Busy
        with self._in_lane.time():
            future = self._slow.submit(work)
            self._in_slow_lane.append((tenant, future))
            return await asyncio.wrap_future(future)


class LocalMeasurer:
    """Counts with a tokenizer in this process, as the engine at hand renders chats.

    Where our rendering cannot follow the engine's, the engine itself is asked.
    """

    def __init__(
        self,
        counters: LocalCounters,
        threads: Threads,
        cache: CountCache,
        metrics: Metrics,
        engine: Callable[[], Engine | None],
        fallback: Measurer,
    ) -> None:
        self._counters = counters
        self._threads = threads
        self._cache = cache
        self._hits = metrics.count_cache.labels("hit")
        self._misses = metrics.count_cache.labels("miss")
        self._engine = engine
        self._fallback = fallback

    async def measure(self, request: ParsedRequest, limit: int | None, tenant: str) -> PromptLength:
        """A small prompt is counted at once: that is cheaper than a bound and a shadow count.

        A larger one is glanced at in place: for 400 kB a thread's hop costs four times as much.
        """
        counter = await self._counter()
        if not self._small(request) and quickly_rendered(request, limit):
            bound = self._threads.in_place(lambda: counter.glance(request.prompt))
            if bound is not None and (limit is None or bound.longest <= limit):
                return bound
        ask = counter.count if self._small(request) else counter.measure
        length = await self._run(request, tenant, lambda means: ask(request.prompt, limit, means))
        return await self._or_ask(request, tenant, length)

    async def exact(self, request: ParsedRequest, tenant: str) -> PromptLength:
        """The whole count: in place where nearly all is remembered, as a growing history is."""
        counter = await self._counter()

        def count(means: Means) -> PromptLength:
            return counter.count(request.prompt, None, means)

        if not self._small(request) and quickly_rendered(request):
            with contextlib.suppress(NeedsPatience):
                return self._threads.in_place(
                    lambda: self._remembering(tenant, count, fresh=FRESH_IN_PLACE)
                )
        return await self._or_ask(request, tenant, await self._run(request, tenant, count))

    async def _run(
        self, request: ParsedRequest, tenant: str, count: Callable[[Means], PromptLength]
    ) -> PromptLength:
        """Where the request belongs by its size; what proves slow there moves to the slow lane."""
        if self._small(request):
            # Remembering costs a small prompt more than counting it again.
            return self._threads.in_place(lambda: count(FREELY))
        try:
            return await self._threads.on_thread(
                lambda: self._remembering(tenant, count, patient=False)
            )
        except NeedsPatience:
            try:
                return await self._threads.in_slow_lane(
                    tenant, lambda: self._remembering(tenant, count, patient=True)
                )
            except Busy:
                return Unverifiable("busy", transient=True)

    def _remembering(
        self,
        tenant: str,
        count: Callable[[Means], PromptLength],
        *,
        patient: bool = False,
        fresh: int | None = None,
    ) -> PromptLength:
        recall = self._cache.of_tenant(tenant, fresh)
        if recall is None and fresh is not None:
            raise NeedsPatience
        try:
            return count(Means(recall, patient))
        finally:
            if recall is not None:
                self._hits.inc(recall.hits)
                self._misses.inc(recall.misses)

    async def _or_ask(
        self, request: ParsedRequest, tenant: str, length: PromptLength
    ) -> PromptLength:
        """The engine's count where ours is missing; our reason where the engine has none either."""
        if not isinstance(length, Unverifiable) or length.reason not in ENGINE_CAN_TELL:
            return length
        asked = await self._fallback.exact(request, tenant)
        has_no_oracle = isinstance(asked, Unverifiable) and asked.reason == NO_TOKENIZER
        return length if has_no_oracle else asked

    def _small(self, request: ParsedRequest) -> bool:
        by_itself = isinstance(request.prompt, TokenIdPrompt)
        return by_itself or len(request.raw) <= self._threads.inline_bytes

    async def _counter(self) -> LocalCounter:
        """For the engine at hand; for one not known yet, as a plain OpenAI-compatible one."""
        engine = self._engine()
        name = engine.name if engine is not None else "openai"
        counter = self._counters.loaded(name)
        if counter is None:
            counter = await self._threads.on_thread(lambda: self._counters.load(name))
        return counter


class EngineMeasurer:
    """Asks the engine's own tokeniser. Token-id prompts and short texts need no question."""

    def __init__(self, url: str, prober: Prober, engine: Callable[[], Engine | None]) -> None:
        self._url = url
        self._prober = prober
        self._engine = engine

    async def measure(self, request: ParsedRequest, limit: int | None, tenant: str) -> PromptLength:
        """The byte bound of plain texts where it settles it, else the engine's count."""
        prompt = request.prompt
        if isinstance(prompt, TextPrompt):
            bound = _byte_bound(prompt)
            if limit is None or bound.longest <= limit:
                return bound
        return await self.exact(request, tenant)

    async def exact(
        self,
        request: ParsedRequest,
        tenant: str,  # noqa: ARG002
    ) -> PromptLength:
        """The engine's count; every failure to get one is ``Unverifiable`` and says which."""
        prompt = request.prompt
        if isinstance(prompt, TokenIdPrompt):
            return Counted(prompt.lengths)
        calls = self._calls(prompt, request.model)
        if isinstance(calls, Unverifiable):
            return calls
        words = await asyncio.gather(*(self._ask(call) for call in calls))
        missing = next((word for word in words if isinstance(word, Unverifiable)), None)
        return missing or Counted(tuple(word for word in words if isinstance(word, int)))

    def _calls(
        self, prompt: ChatPrompt | TextPrompt | OpaquePrompt, model: str
    ) -> tuple[OracleCall, ...] | Unverifiable:
        """The questions to put, or why there are none."""
        if isinstance(prompt, OpaquePrompt):
            return Unverifiable(prompt.reason)
        if isinstance(prompt, ChatPrompt) and shows_media(prompt.body):
            return Unverifiable("media")
        engine = self._engine()
        calls = engine.oracle(prompt, model) if engine is not None else None
        return Unverifiable(NO_TOKENIZER, transient=True) if calls is None else calls

    async def _ask(self, call: OracleCall) -> int | Unverifiable:
        """A count, or why there is none: a 4xx is the engine's word on this request and stays."""
        answer = (await self._prober.ask(self._url, (call.probe,)))[call.probe]
        count = call.count(answer)
        if count is not None:
            return count
        if 400 <= answer.status < 500:
            return Unverifiable("engine_refused")
        return Unverifiable("engine_tokenizer", transient=True)


def quickly_rendered(request: ParsedRequest, limit: int | None = None) -> bool:
    """Whether a glance takes a millisecond or two at most, and has a chance to settle it.

    Templates take time by the byte and by the message; the body's values stand for messages.
    """
    size = len(request.raw)
    if size > GLANCE_BYTES or (limit is not None and size > limit):
        return False
    values = GLANCE_VALUES
    left: list[object] = [request.body]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        values -= 1
        if len(left) > values:
            return False
    return True


def _byte_bound(prompt: TextPrompt) -> Bounded:
    bounds = [
        NORMALISER_GROWTH * len(text.encode("utf-8", "surrogatepass")) + SPECIAL_TOKENS
        for text in prompt.texts
    ]
    return Bounded(max(bounds, default=0), sum(bounds))
