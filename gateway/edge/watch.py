"""The watch on one request: its prompt and answer are remembered, others' text in it is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from gateway.core.fingerprint.atoms import AtomMatcher, atoms
from gateway.core.fingerprint.index import Kind
from gateway.core.fingerprint.matcher import Matcher
from gateway.core.fingerprint.normal import SLICE_CHARS
from gateway.core.fingerprint.shingles import Hashes, KnownText, sample
from gateway.core.fingerprint.verdict import CHECK, Strength
from gateway.core.quarantine import BackendKey
from gateway.core.tenants import Tenant
from gateway.dialects.answer_text import AnswerText, Heard
from gateway.dialects.prompt_text import all_text, is_readable, prompt_text
from gateway.engines.asking import shows_media
from gateway.types import (
    Action,
    CheckResult,
    Ending,
    Evidence,
    Finding,
    Observation,
    ParsedRequest,
    Verdict,
)

if TYPE_CHECKING:
    from gateway.edge.fingerprints import Fingerprints, Memory

MOST_ANSWER: Final = 2**22  # characters of one answer that are remembered
CUMULATIVE: Final = "sglang_generate"  # the dialect whose stream tells everything again and again


class Watch:
    """Watches one request: remembers its prompt and answer, and looks for others' in the answer."""

    def __init__(
        self,
        shared: Fingerprints,
        memory: Memory,
        backend: BackendKey,
        request: ParsedRequest,
        tenant: Tenant,
    ) -> None:
        self._shared = shared
        self._memory = memory
        self._backend = backend
        self._request = request
        self._tenant = tenant.id
        self._number = shared.memories.number(tenant.id)
        self._is_remembered = tenant.fingerprint
        memories = shared.memories
        self._matcher = Matcher(memories.scheme, memory.index, self._number, shared.public)
        self._atoms = AtomMatcher(memories.atom_key, memory.atoms, self._number)
        self._text = AnswerText(cumulative=request.dialect == CUMULATIVE)
        self._answer: dict[Hashable, list[str]] = {}
        self._answer_room = MOST_ANSWER
        self._begun = False
        self._told = False

    @property
    def _learning(self) -> bool:
        """Whether it is still being learnt what is common, so that findings are only flagged."""
        return self._shared.clock() - self._memory.began < self._shared.policy.learning

    @property
    def _action(self) -> Action:
        return Action.FLAG if self._learning else self._shared.policy.action

    # --- the prompt ---------------------------------------------------------------------------

    def begin(self) -> None:
        """The request is with the engine: remember its prompt."""
        if not self._begun and self._is_remembered:
            self._shared.tasks.spawn(self._remember_prompt(), "fingerprints of a prompt")
        self._begun = True

    async def _remember_prompt(self) -> None:
        def said(*, by_model: bool) -> list[str]:
            return [
                each.text for each in prompt_text(self._request.body) if each.by_model == by_model
            ]

        size = len(self._request.raw)
        await self._remember(Kind.PROMPT, size, lambda: said(by_model=False))
        await self._remember(Kind.ANSWER, size, lambda: said(by_model=True))

    async def _remember(self, kind: Kind, size: int, texts: Callable[[], Sequence[str]]) -> None:
        """Remember ``texts``, which are of about ``size`` characters."""
        memories = self._shared.memories

        def hashed() -> tuple[Hashes, Hashes]:
            given = texts()
            return sample(memories.scheme, given), atoms(memories.atom_key, given)

        windows, words = await self._shared.worked_out(size, hashed)
        if self._shared.tell is not None:
            self._shared.tell(self._backend, memories.tag(self._tenant), kind, windows, words)
        for index, hashes in ((self._memory.index, windows), (self._memory.atoms, words)):
            if len(hashes):
                for _ in index.add(self._number, kind, hashes):
                    await asyncio.sleep(0)

    # --- the answer ---------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        """Whether what was heard last must not be released yet."""
        return self._matcher.holding and self._action is not Action.FLAG and not self._unconfirmed

    async def hear_events(self, released: bytes) -> Finding | None:
        """Some whole events of a stream, before they go out."""
        return await self._hear(self._text.of_events(released))

    async def hear_body(self, body: bytes) -> Finding | None:
        """A whole answer, before it goes out."""
        pieces = await self._shared.worked_out(len(body), lambda: self._text.of_body(body))
        return await self._hear(pieces)

    async def _hear(self, pieces: Sequence[Heard]) -> Finding | None:
        for piece in pieces:
            channel = object() if piece.channel is None else piece.channel
            if len(piece.text) < SLICE_CHARS:
                self._look(channel, piece.text, copy=piece.copy)
            else:
                await self._look_on(channel, piece)
            if self._matcher.unsettled:
                await self._settle()
            if piece.channel is None:
                self._matcher.finish(channel)
                self._atoms.finish(channel)
        return self._finding()

    async def _look_on(self, channel: Hashable, piece: Heard) -> None:
        """A long text, a slice at a time: each takes most of a millisecond."""
        for start in range(0, len(piece.text), SLICE_CHARS):
            self._look(channel, piece.text[start : start + SLICE_CHARS], copy=piece.copy)
            if self._matcher.unsettled:
                await self._settle()
            await asyncio.sleep(0)

    def _look(self, channel: Hashable, text: str, *, copy: bool) -> None:
        self._matcher.feed(channel, text)
        if not copy:
            self._atoms.feed(channel, text)
            self._keep(channel, text)

    async def _settle(self) -> None:
        self._matcher.settle(await self._own_text())

    def _keep(self, channel: Hashable, text: str) -> None:
        """Keep an answer's text until it is over and was found to be clean."""
        if self._is_remembered and self._answer_room > 0:
            self._answer.setdefault(channel, []).append(text)
            self._answer_room -= len(text)

    async def _own_text(self) -> KnownText:
        body, scheme = self._request.body, self._shared.memories.scheme
        return await self._shared.worked_out(
            len(self._request.raw), lambda: KnownText(scheme, all_text(body))
        )

    @property
    def _unconfirmed(self) -> str | None:
        """Why it cannot be told whether the text was in the own prompt."""
        if not is_readable(self._request):
            return "prompt_unread"
        return "media" if shows_media(self._request.body) else None

    def _finding(self) -> Finding | None:
        """The strong finding, once."""
        run = self._matcher.longest if self._matcher.strength is Strength.STRONG else None
        if run is None or self._told or self._unconfirmed:
            return None
        self._told = True
        reason = f"{run.kind.name.lower()}_run"
        return Finding(
            CheckResult(CHECK, Verdict.LEAK, reason, None, run.length, suspect=True),
            Evidence.STRONG,
            self._action,
            forgeable=True,
            source=self._shared.memories.tenant(run.tenant),
            numbers={"longest_run_bytes": run.length, "learning": int(self._learning)},
        )

    # --- the end ------------------------------------------------------------------------------

    async def conclude(self, seen: Observation) -> CheckResult | Finding | None:
        """The answer is over: its verdict, unless it was told; or that there were too many."""
        self.begin()
        self._matcher.end()
        foreign = await self._foreign_atoms()
        reason = self._unverifiable(seen)
        found = self._strength_word(foreign)
        if found and not self._unconfirmed:
            self._shared.metrics.fingerprint_findings.labels(self._backend[0], found).inc()
        elif self._matcher.longest is None:
            self._remember_answer()
        if reason:
            return None if self._told else CheckResult(CHECK, Verdict.UNVERIFIABLE, reason)
        return self._weighed(found)

    def _remember_answer(self) -> None:
        if self._answer:
            remembering = self._remember(
                Kind.ANSWER,
                MOST_ANSWER - self._answer_room,
                lambda: ["".join(parts) for parts in self._answer.values()],
            )
            self._shared.tasks.spawn(remembering, "fingerprints of an answer")

    def _weighed(self, found: str) -> CheckResult | Finding | None:
        """Count the answer for its backend."""
        memory = self._memory
        memory.suspicion = memory.suspicion.after(found=bool(found))
        if memory.suspicion.alarmed:
            score = round(memory.suspicion.score, 1)
            memory.suspicion = memory.suspicion.reset()
            result = CheckResult(CHECK, Verdict.LEAK, "finding_rate", None, score, suspect=True)
            return Finding(result, Evidence.STRONG, self._action, forgeable=True)
        return None if self._told else CheckResult(CHECK, Verdict.OK, found)

    def _strength_word(self, foreign_atoms: int) -> str:
        """The strongest there was, as a fixed word; empty where there was nothing."""
        if self._matcher.strength is not Strength.NONE:
            return f"{self._matcher.strength.name.lower()}_run"
        return "atom" if foreign_atoms else ""

    def _unverifiable(self, seen: Observation) -> str:
        """Why there is no verdict, as a fixed word; empty where there is one."""
        if not seen.scanned or not self._text.complete or not self._matcher.complete:
            return "not_scanned"
        if seen.ending is not Ending.COMPLETE:
            return str(seen.ending)
        was_found = self._matcher.longest is not None
        return (self._unconfirmed or "") if was_found else ""

    async def _foreign_atoms(self) -> int:
        """How many atoms of others the answer has and the own prompt has not."""
        foreign = self._atoms.end()
        if not len(foreign):
            return 0
        body, key = self._request.body, self._shared.memories.atom_key
        own = await self._shared.worked_out(
            len(self._request.raw), lambda: atoms(key, all_text(body))
        )
        return len(np.setdiff1d(foreign, own))
