"""The simulated engine's state machine: two legs, their memory, and the fault between them.

    receive -> (reject) -> wait for pages on both legs -> prefill by chunks -> transfer -> decode

Sans-IO: the caller drives each sequence and does the waiting. The incident is two lines here: a
rejection is noted in ``receive`` instead of raised, and ``prefill_tokens`` becomes a placeholder
while decode reserves pages by its own, true count.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.simulate.oracle import Truth
from gateway.simulate.pages import PageMemory, PoolExhausted
from gateway.simulate.prefixes import Match, PrefixCache
from gateway.simulate.settings import SimulateSettings
from gateway.simulate.text import Attended, Filler, Writer, geometric

NO_MATCH = Match((), (), foreign=False)
PLACEHOLDER = (0,)  # what an aborted request's prompt becomes (SGLang: origin_input_ids = [0])


class EngineRefusal(Exception):
    """The engine will not answer. ``in_stream``: known too late for a status line (scheduler)."""

    def __init__(self, message: str, *, status: int = 400, in_stream: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.in_stream = in_stream


class Stage(StrEnum):
    """Where a sequence is. REJECTED, FINISHED and ABORTED are terminal and distinct."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    REJECTED = "rejected"
    FINISHED = "finished"
    ABORTED = "aborted"


TERMINAL = (Stage.REJECTED, Stage.FINISHED, Stage.ABORTED)


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence asked for. ``owner`` labels its tokens in memory and must be unique."""

    rid: str
    owner: str
    prompt: Tokens[int]
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    salt: str = ""


@dataclass(slots=True)
class Ledger:
    """Both sides' books of one transfer."""

    reserved_pages: int = 0
    sent_pages: int = 0
    sent_tokens: int = 0
    received_tokens: int = 0
    exposed_tokens: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence on its way through both legs."""

    work: Work
    prefill_tokens: Tokens[int]
    planned: int
    stops: bool
    rng: random.Random
    writer: Writer
    stage: Stage = Stage.WAITING
    match: Match = NO_MATCH
    prefill_table: list[int] = field(default_factory=list)
    decode_table: list[int] = field(default_factory=list)
    prefilled: int = 0
    output: list[int] = field(default_factory=list)
    finish: str = ""
    status: int = 200
    cached: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    copied: Counter[str] = field(default_factory=Counter)


class Engine:
    """Both legs. Not thread-safe; one event loop (or one test) drives it."""

    def __init__(self, settings: SimulateSettings, filler: Filler, special: frozenset[int]) -> None:
        self.settings = settings
        self._filler = filler
        self._special = special
        self._received = 0
        self._waiting: deque[Sequence] = deque()
        self.prefill_memory = self._memory("prefill")
        self.decode_memory = self._memory("decode")
        faults = settings.faults
        self.cache = PrefixCache(
            self.prefill_memory,
            enabled=settings.prefix_cache,
            honours_salt=not (faults.salt or faults.cache_silent),
        )
        self.prefilling = 0

    def _memory(self, leg: str) -> PageMemory:
        settings = self.settings
        return PageMemory(
            settings.pool(leg),
            settings.page_size,
            order=settings.free_order,
            rng=random.Random(f"{settings.seed}:{leg}"),
            scrub_on_free=settings.scrub_on_free,
        )

    @property
    def waiting(self) -> int:
        """Sequences that wait for pages."""
        return len(self._waiting)

    def receive(self, work: Work) -> Sequence:
        """Take a request in. Raises EngineRefusal where rejection is terminal."""
        self._check_context(work)
        prefill_tokens = work.prompt
        for leg in ("decode", "prefill"):
            refusal = self._over_pool(leg, len(work.prompt))
            if refusal is None:
                continue
            if leg == "decode" or not self.settings.faults.to_finish:
                raise refusal
            prefill_tokens = PLACEHOLDER  # noted, not finished: the request goes on
        rng = random.Random(f"{self.settings.seed}:{self._received}")
        self._received += 1
        planned, stops = self._plan(work, rng)
        writer = Writer(work.owner, self.settings.habits, self._filler, self._special, rng)
        sequence = Sequence(work, prefill_tokens, planned, stops, rng, writer)
        self._waiting.append(sequence)
        return sequence

    def check(self, work: Work) -> None:
        """Refuse what either leg cannot hold, as endpoints do that run on one leg only."""
        self._check_context(work)
        for leg in ("prefill", "decode"):
            if refusal := self._over_pool(leg, len(work.prompt)):
                raise refusal

    def _check_context(self, work: Work) -> None:
        """The tokenizer manager's checks, which come before any scheduler and always hold."""
        length, context = len(work.prompt), self.settings.context
        if length == 0:
            raise EngineRefusal("The prompt is empty.")
        if length >= context:
            raise EngineRefusal(
                f"The input ({length} tokens) is longer than the model's context length "
                f"({context} tokens)."
            )
        wanted = work.max_new_tokens
        if wanted is not None and length + wanted > context:
            raise EngineRefusal(
                f"Requested token count exceeds the model's maximum context length of {context} "
                f"tokens. You requested a total of {length + wanted} tokens: {length} tokens from "
                f"the input messages and {wanted} tokens for the completion. Please reduce the "
                "number of tokens in the input messages or the completion to fit within the limit."
            )

    def _over_pool(self, leg: str, length: int) -> EngineRefusal | None:
        bound = self.settings.max_req_input_len(leg)
        if length < bound:
            return None
        return EngineRefusal(
            f"Input length ({length} tokens) exceeds the maximum allowed length ({bound} tokens). "
            "Use a shorter input or enable --allow-auto-truncate.",
            in_stream=True,
        )

    def _plan(self, work: Work, rng: random.Random) -> tuple[int, bool]:
        """How many tokens the answer gets, and whether it ends by itself."""
        room = self.settings.max_req_input_len("decode") + 5 - len(work.prompt) - 1
        cut = room if work.max_new_tokens is None else min(room, work.max_new_tokens)
        natural = geometric(self.settings.mean_answer, rng)
        if work.ignore_eos or natural >= cut:
            return cut, False
        return natural, True

    def start(self) -> list[Sequence]:
        """Let waiting sequences have their pages, first come first served; those that got them."""
        started: list[Sequence] = []
        while self._waiting and self._reserve(self._waiting[0]):
            started.append(self._waiting.popleft())
        return started

    def _reserve(self, sequence: Sequence) -> bool:
        """Decode preallocates by its own count of the prompt, prefill by its."""
        memory, work = self.decode_memory, sequence.work
        wanted = memory.pages_for(len(work.prompt) + sequence.planned)
        if wanted > memory.free_pages:
            return False
        match = self.cache.match(work.salt, sequence.prefill_tokens)
        missing = self.prefill_memory.pages_for(len(sequence.prefill_tokens)) - len(match.pages)
        try:
            fresh = self.cache.allocate(missing)
        except PoolExhausted:
            self.cache.unpin(match)
            return False
        sequence.match = match
        sequence.prefill_table = [*match.pages, *fresh]
        sequence.decode_table = memory.allocate(wanted)
        sequence.prefilled = len(match.pages) * self.settings.page_size
        silent = self.settings.faults.cache_silent and match.foreign
        sequence.cached = 0 if silent else sequence.prefilled
        sequence.ledger.reserved_pages = memory.pages_for(len(work.prompt))
        sequence.stage = Stage.PREFILL
        self.prefilling += 1
        return True

    def uncached(self, sequence: Sequence) -> int:
        """Prompt tokens the prefill leg has yet to compute, by its own count."""
        return len(sequence.prefill_tokens) - sequence.prefilled

    def prefill_chunk(self, sequence: Sequence) -> int:
        """Compute the next chunk into prefill's pages; how many tokens it had."""
        start = sequence.prefilled
        chunk = sequence.prefill_tokens[start : start + self.settings.chunk]
        self.prefill_memory.write(sequence.prefill_table, start, sequence.work.owner, chunk)
        sequence.prefilled += len(chunk)
        return len(chunk)

    def transfer(self, sequence: Sequence) -> None:
        """Send prefill's pages to decode's. Raises EngineRefusal (500) if decode checks coverage.

        Decode believes in "complete"; only with ``len_check`` does it compare the counts.
        """
        self._copy_over(sequence)
        self._release_prefill(sequence, keep=True)
        sequence.stage = Stage.DECODE
        received, length = sequence.ledger.received_tokens, len(sequence.work.prompt)
        if self.settings.faults.len_check and received != length:
            raise EngineRefusal(
                f"KV transfer incomplete: received {received} of {length} tokens.",
                status=500,
                in_stream=True,
            )

    def _copy_over(self, sequence: Sequence) -> None:
        ledger = sequence.ledger
        for source, page in zip(sequence.prefill_table, sequence.decode_table, strict=False):
            self.decode_memory.copy_from(self.prefill_memory, source, page)
        shared = len(sequence.match.pages) * self.settings.page_size
        self.decode_memory.write(  # shared pages hold these very tokens under their writer's name
            sequence.decode_table, 0, sequence.work.owner, sequence.prefill_tokens[:shared]
        )
        ledger.sent_pages = len(sequence.prefill_table)
        ledger.sent_tokens = ledger.received_tokens = len(sequence.prefill_tokens)

    def _release_prefill(self, sequence: Sequence, *, keep: bool) -> None:
        """Prefill's pages go to the cache (``keep``) or back to the pool; at most once."""
        if not sequence.prefill_table:
            return
        shared = len(sequence.match.pages)
        if keep:
            tokens = sequence.prefill_tokens
            self.cache.adopt(sequence.work.salt, tokens, sequence.prefill_table, shared)
        else:
            self.prefill_memory.release(sequence.prefill_table[shared:])
        self.cache.unpin(sequence.match)
        sequence.prefill_table = []
        self.prefilling -= 1

    def step(self, sequence: Sequence) -> int | None:
        """One decode step: a token, or None once ``finish`` is set; the last token sets it."""
        if self.settings.faults.empty200:
            sequence.finish = "empty"
        elif len(sequence.output) >= sequence.planned:
            self._complete(sequence)
        if sequence.finish:
            return None
        work, table = sequence.work, sequence.decode_table
        length = len(work.prompt) + len(sequence.output)
        token, copied_from = sequence.writer.next(Attended(self.decode_memory, table, length))
        if copied_from not in (None, work.owner):
            sequence.copied[copied_from] += 1
        self.decode_memory.write(table, length, work.owner, (token,))
        sequence.output.append(token)
        if len(sequence.output) >= sequence.planned:
            self._complete(sequence)
        return token

    @staticmethod
    def _complete(sequence: Sequence) -> None:
        sequence.finish = "stop" if sequence.stops else "length"

    def close(self, sequence: Sequence) -> bool:
        """End a sequence and free its pages; False if it had ended before.

        With ``early_free`` a prefill that is under way keeps its pages and its table of decode's,
        and the caller must go on with it: the pages it will write to are no longer its own.
        """
        if sequence.stage in TERMINAL:
            return False
        if sequence.stage is Stage.WAITING:
            self._waiting.remove(sequence)
        if sequence.stage is Stage.DECODE:
            owners = self.decode_memory.owners(sequence.decode_table, len(sequence.work.prompt))
            harmless = ("", sequence.work.owner)
            sequence.ledger.exposed_tokens = sum(name not in harmless for name in owners)
        early = self.settings.faults.early_free and sequence.stage is Stage.PREFILL
        self.decode_memory.release(sequence.decode_table)
        if not early:
            sequence.decode_table = []
            self._release_prefill(sequence, keep=False)
        if sequence.finish in ("stop", "length", "empty"):
            sequence.stage = Stage.FINISHED
        else:
            sequence.stage = Stage.ABORTED if sequence.status == 200 else Stage.REJECTED
            sequence.finish = sequence.finish or "abort"
        return True

    def late_transfer(self, sequence: Sequence) -> None:
        """``early_free`` only: the writer that outlived its request writes into freed pages."""
        self._copy_over(sequence)
        self._release_prefill(sequence, keep=True)
        sequence.decode_table = []

    def truth(self, sequence: Sequence) -> Truth:
        """What the oracle is told of an ended sequence."""
        ledger, work = sequence.ledger, sequence.work
        return Truth(
            rid=work.rid,
            owner=work.owner,
            prompt_tokens=len(work.prompt),
            prefill_tokens=len(sequence.prefill_tokens),
            cached_tokens=sequence.cached,
            completion_tokens=len(sequence.output),
            stage=sequence.stage,
            finish=sequence.finish,
            status=sequence.status,
            leaked=bool(sequence.copied),
            exposed_tokens=ledger.exposed_tokens,
            copied=dict(sequence.copied),
            reserved_pages=ledger.reserved_pages,
            sent_pages=ledger.sent_pages,
            received_tokens=ledger.received_tokens,
        )
